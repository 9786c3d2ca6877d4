"""Any history of requests, uploads, restarts and deaths is answered by the table."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.branches import Branch, orders
from support.kinds import ALL_KINDS, CONTRACT_KINDS, sqlite_url
from support.participant import Upload, World
from support.stateful import explore
from werkzeug.test import TestResponse

Cell = tuple[int, str]
"""A status, and the state that the answer says."""

ASKED: Final = (
    *("prepare", "prepare other", "commit", "commit other", "commit nothing"),
    *("abort", "abort branch", "look up"),
)
SAYS: Final = ("unknown", "prepared", "committed", "aborted", "forgotten")
ROWS = """
200p 200p 404u 404u 200c 200a 200a 404u unknown
200p 409p 200c 409p -    200a 200a 200p prepared
409c 409c 200c 409c -    409c 409c 200c committed
409a 409a 409a 409a 409a 200a 200a 200a aborted
409c 409c 404u 404u 200c 409c 200a 200c unknown, the transaction committed
409c 409c 404u 404u 404u 200a 200a 404u another attempt committed
410f 410f 410f 410f 410f 410f 410f 410f at or below forgotten_through
"""
"""Below each that may be asked the answer: its status, and how its state begins."""


def cells_of(row: str) -> tuple[str, dict[str, Cell]]:
    """Read a row; where it says nothing nobody can ask."""
    *answers, name = row.split(maxsplit=len(ASKED))
    said = {word[0]: word for word in SAYS}
    told = zip(ASKED, answers, strict=True)
    return name, {a: (int(c[:3]), said[c[3]]) for a, c in told if c != "-"}


TABLE: Final = dict(map(cells_of, ROWS.strip().splitlines()))
"""State of the branch, and request: the answer. Only a 200 changes anything, and then
the branch is in the state that the answer says. *Other* is other content under the
branch's name. What a person resolved is in the row of its outcome, and flagged."""

TRANSACTIONS: Final = ("1.1", "1.2", "2.1", "2.2")
"""`<batch>.<attempt>`"""

BRANCHES: Final = ("0.1", "0.2", "1.1", "1.2")
"""`<partition>.<task attempt>`"""

CONTENTS: Final = ("this", "that")
NEVER: Final = "9.9"
"""A branch that nobody ever prepares: its row is the transaction's own."""


def branch_of(branch: str, content: str) -> Branch:
    """Rows are a power of two each: the number that a reader sees says of which."""
    rows = 1 << BRANCHES.index(branch) + 4 * CONTENTS.index(content)
    return Branch(orders(*range(rows)), rows, branch)


BODIES: Final = {(b, c): branch_of(b, c) for b in BRANCHES for c in CONTENTS}


@dataclasses.dataclass(frozen=True, slots=True)
class Held:
    """A branch as the model holds it; a tombstone has no content."""

    state: str
    content: str | None


@dataclasses.dataclass(slots=True)
class Transaction:
    """A transaction as the model holds it. Sealed, it never changes again."""

    seal: str | None = None
    by_hand: bool = False
    branches: dict[str, Held] = dataclasses.field(default_factory=dict)

    def holding(self, state: str) -> list[str]:
        """Branches in a state."""
        return [b for b, held in self.branches.items() if held.state == state]

    def become(self, branch: str, state: str) -> None:
        """Move a branch; one that was never heard of gets a tombstone."""
        held = self.branches.get(branch)
        self.branches[branch] = Held(state, held.content if held else None)


class Model:
    """What a participant must hold and say: the table, and how it is to be read.

    Args:
        spools: an upload keeps others from its branch before its body has arrived.
    """

    def __init__(self, *, spools: bool) -> None:
        self._spools = spools
        self._under_way: set[tuple[str, str]] = set()
        self.forgotten_through = -1
        self.visible = 0
        self._transactions: dict[str, Transaction] = collections.defaultdict(
            Transaction
        )

    def row(self, transaction: str, branch: str) -> str:
        """Return the row that answers. forgotten_through goes before every other."""
        here = self._transactions[transaction]
        state = here.branches[branch].state if branch in here.branches else "unknown"
        if self.forgotten(transaction):
            return "at or below forgotten_through"
        if here.seal and state == "unknown":
            sealed = {"committed": "unknown, the transaction committed"}
            return sealed.get(here.seal, "aborted")
        if not here.seal and self.rival(transaction):
            return "another attempt committed"
        return state

    def forgotten(self, transaction: str) -> bool:
        """At or below forgotten_through."""
        return _batch(transaction) <= self.forgotten_through

    def rival(self, transaction: str) -> str | None:
        """Return another attempt of the batch that is committed here."""
        for other in TRANSACTIONS:
            same = _batch(other) == _batch(transaction) and other != transaction
            if same and self._transactions[other].seal == "committed":
                return other
        return None

    def by_hand(self, transaction: str) -> bool:
        """Whether a person decided it."""
        return self._transactions[transaction].by_hand

    def in_doubt(self) -> list[tuple[str, str, str]]:
        """List what is not sealed: transaction, branch, state."""
        return sorted(
            (transaction, branch, "prepared")
            for transaction, here in self._transactions.items()
            for branch in here.holding("prepared")
        )

    def prepared(self, transaction: str) -> dict[str, str]:
        """Return what a commit could name, of twins the first: branch and content."""
        here = self._transactions[transaction]
        first: dict[str, str] = {}
        for branch in sorted(here.holding("prepared"), reverse=True):
            first[_partition(branch)] = branch
        return {b: here.branches[b].content or "" for b in first.values()}

    def prepare(self, transaction: str, branch: str, content: str) -> Cell:
        """Speak of one branch; its rows are all there."""
        cell = self._cell("prepare", transaction, branch, content)
        if self.keeps_out(transaction, branch):
            return 425, "unknown"
        if cell[0] == 200:
            held = Held("prepared", content)
            self._transactions[transaction].branches[branch] = held
        return cell

    def write(self, transaction: str, branch: str) -> None:
        """Begin a prepare whose rows come later: nobody sees anything of it."""
        if self._spools:
            self._under_way.add((transaction, branch))

    def keeps_out(self, transaction: str, branch: str) -> bool:
        """Whether an upload keeps a prepare out, which nothing else refuses."""
        is_open = self.row(transaction, branch) == "unknown"
        return is_open and (transaction, branch) in self._under_way

    def written(self, transaction: str, branch: str, content: str) -> Cell:
        """Look again, with all rows there: as any other prepare (rule 20)."""
        self.dropped(transaction, branch)
        return self.prepare(transaction, branch, content)

    def dropped(self, transaction: str, branch: str) -> None:
        """End an upload."""
        self._under_way.discard((transaction, branch))

    def commit(
        self, transaction: str, named: Mapping[str, str], forgotten_through: int | None
    ) -> set[Cell]:
        """Speak of all that is named, or of nobody; any refusal may be the answer."""
        cells = {self._cell("commit", transaction, *n) for n in named.items()}
        cells = cells or {TABLE[self.row(transaction, NEVER)]["commit nothing"]}
        return self._obey(cells, transaction, "committed", named, forgotten_through)

    def abort(self, transaction: str, forgotten_through: int | None) -> set[Cell]:
        """Speak of every branch; one that is committed speaks for all of them."""
        everybody = (*BRANCHES, NEVER)
        cells = {TABLE[self.row(transaction, b)]["abort"] for b in everybody}
        return self._obey(cells, transaction, "aborted", (), forgotten_through)

    def abort_branch(
        self, transaction: str, branch: str, forgotten_through: int | None
    ) -> set[Cell]:
        """Speak of one branch. Nothing is kept about one of a sealed transaction."""
        cell = TABLE[self.row(transaction, branch)]["abort branch"]
        if cell[0] == 200:
            here = self._transactions[transaction]
            if not here.seal:
                here.become(branch, "aborted")
            self._forget(forgotten_through)
        return {cell}

    def resolve(self, transaction: str, outcome: str) -> Cell:
        """Decide by hand: what is prepared and not sealed, once, and nothing twice."""
        here = self._transactions[transaction]
        prepared = here.holding("prepared")
        if here.seal:
            return 409, here.seal
        if not prepared:
            forgotten = self.forgotten(transaction)
            return (410, "forgotten") if forgotten else (404, "unknown")
        twins = len({_partition(b) for b in prepared}) < len(prepared)
        twice = twins or self.forgotten(transaction) or self.rival(transaction)
        if outcome == "commit" and twice:
            return 409, "prepared"
        here.by_hand = True
        kept = prepared if outcome == "commit" else []
        return self._seal(here, "committed" if kept else "aborted", kept)

    def look_up(self, transaction: str) -> tuple[int, dict[str, str]]:
        """Return the status, and the state of each branch that is listed."""
        here = self._transactions[transaction]
        if self.forgotten(transaction) or not (here.seal or here.branches):
            return TABLE[self.row(transaction, NEVER)]["look up"][0], {}
        states = {branch: held.state for branch, held in here.branches.items()}
        rows = {self.row(transaction, NEVER)} if here.seal else states.values()
        return max(TABLE[row]["look up"][0] for row in rows), states

    def _cell(self, asked: str, transaction: str, branch: str, content: str) -> Cell:
        held = self._transactions[transaction].branches.get(branch)
        other = held is not None and held.content != content
        row = self.row(transaction, branch)
        return TABLE[row][f"{asked} other" if other else asked]

    def _obey(
        self,
        cells: set[Cell],
        transaction: str,
        outcome: str,
        named: Collection[str],
        forgotten_through: int | None,
    ) -> set[Cell]:
        if refused := {cell for cell in cells if cell[0] != 200}:
            return refused
        if not (here := self._transactions[transaction]).seal:
            self._seal(here, outcome, named)
        self._forget(forgotten_through)
        return {(200, outcome)}

    def _seal(self, here: Transaction, outcome: str, kept: Collection[str]) -> Cell:
        """Seal: the kept branches take the outcome, and all others abort."""
        here.seal = outcome
        for branch, held in here.branches.items():
            here.become(branch, outcome if branch in kept else "aborted")
            if branch in kept:
                self.visible += BODIES[branch, held.content or ""].rows
        return 200, outcome

    def _forget(self, forgotten_through: int | None) -> None:
        """Raise forgotten_through. It never falls; below it only the prepared stay."""
        if forgotten_through is None or forgotten_through <= self.forgotten_through:
            return
        self.forgotten_through = forgotten_through
        for transaction in filter(self.forgotten, TRANSACTIONS):
            here = self._transactions[transaction]
            prepared = {b: here.branches[b] for b in here.holding("prepared")}
            self._transactions[transaction] = Transaction(branches=prepared)


def _batch(transaction: str) -> int:
    return int(transaction.partition(".")[0])


def _partition(branch: str) -> str:
    return branch.partition(".")[0]


Key = tuple[str, str, str]
"""Transaction, branch and content of an upload that is under way."""

transactions = st.sampled_from(TRANSACTIONS)
branches = st.sampled_from(BRANCHES)
contents = st.sampled_from(CONTENTS)
forgotten_by_application = st.sampled_from([None, None, None, 0, 1])


def named(min_size: int = 0) -> st.SearchStrategy[dict[str, str]]:
    """Some branches, each with one of its contents."""
    return st.dictionaries(branches, contents, min_size=min_size, max_size=3)


class ParticipantMachine(RuleBasedStateMachine):
    """A participant and its model are asked the same, step by step."""

    _applications = itertools.count(1)

    def __init__(self, start: Callable[[], World], *, spools: bool) -> None:
        super().__init__()
        self._start = start
        self._world = start()
        self._model = Model(spools=spools)
        self._application = f"orders-{next(self._applications)}"
        self._visible_before = self._world.visible()
        self._uploads: dict[Key, Upload] = {}
        self._old: list[World] = []
        self._steps_since_start = 0

    @rule(transaction=transactions, wanted=named(min_size=1))
    def prepare(self, transaction: str, wanted: dict[str, str]) -> None:
        for branch, content in wanted.items():
            self._prepare(transaction, branch, content)

    @rule(
        transaction=transactions,
        wanted=named(),
        forgotten_through=forgotten_by_application,
    )
    def commit(
        self, transaction: str, wanted: dict[str, str], forgotten_through: int | None
    ) -> None:
        if forgotten_through is not None and forgotten_through >= _batch(transaction):
            self._refuses(transaction, forgotten_through)
            return
        bodies = [BODIES[n] for n in wanted.items()]
        name = self._name(transaction)
        answer = self._world.commit(name, *bodies, forgotten_through=forgotten_through)
        cells = self._model.commit(transaction, wanted, forgotten_through)
        self._check(transaction, answer, cells)

    @rule(
        transaction=transactions,
        forgotten_through=forgotten_by_application,
        but=st.sets(branches),
    )
    def commit_what_is_prepared(
        self, transaction: str, forgotten_through: int | None, but: set[str]
    ) -> None:
        prepared = self._model.prepared(transaction)
        wanted = {b: content for b, content in prepared.items() if b not in but}
        self.commit(transaction, wanted, forgotten_through)

    @rule(transaction=transactions, forgotten_through=forgotten_by_application)
    def abort(self, transaction: str, forgotten_through: int | None) -> None:
        if forgotten_through is not None and forgotten_through >= _batch(transaction):
            self._refuses(transaction, forgotten_through)
            return
        answer = self._world.abort(
            self._name(transaction), forgotten_through=forgotten_through
        )
        cells = self._model.abort(transaction, forgotten_through)
        self._check(transaction, answer, cells)

    @rule(transaction=transactions, branch=branches)
    def abort_branch(self, transaction: str, branch: str) -> None:
        answer = self._world.abort(self._name(transaction), branch=branch)
        cells = self._model.abort_branch(transaction, branch, None)
        self._check(transaction, answer, cells)

    @rule(transaction=transactions, outcome=st.sampled_from(["commit", "abort"]))
    def resolve(self, transaction: str, outcome: str) -> None:
        answer = self._world.resolve(self._name(transaction), outcome)
        cell = self._model.resolve(transaction, outcome)
        self._check(transaction, answer, {cell})

    @rule(transaction=transactions, branch=branches, content=contents)
    def upload_begins(self, transaction: str, branch: str, content: str) -> None:
        key = transaction, branch, content
        is_open = self._model.row(transaction, branch) == "unknown"
        if not is_open or key in self._uploads or self._model.keeps_out(*key[:2]):
            self._prepare(*key)
            return
        name = self._name(transaction)
        upload = Upload(self._world, name, BODIES[branch, content], {})
        self._uploads[key] = upload
        self._model.write(transaction, branch)

    @precondition(lambda self: self._uploads)
    @rule(which=st.integers(0, 3), whole=st.booleans())
    def upload_ends(self, which: int, whole: bool) -> None:
        transaction, branch, content = key = sorted(self._uploads)[
            which % len(self._uploads)
        ]
        upload = self._uploads.pop(key)
        if whole:
            answer = upload.finish()
            cell = self._model.written(transaction, branch, content)
            said = self._check(transaction, answer, {cell})
            assert said["vote"] == ("commit" if cell[0] == 200 else "abort")
        else:
            self._model.dropped(transaction, branch)
            assert upload.break_off().status_code == 400
        self._close_old()

    @precondition(lambda self: self._steps_since_start > 3)
    @rule(killed=st.booleans())
    def restart(self, killed: bool) -> None:
        """Another process takes over; the old one reads to the end what it began.

        As by SIGKILL, if it was killed: uploads end without a word.
        """
        if killed:
            for (transaction, branch, _), upload in self._uploads.items():
                upload.break_off()
                self._model.dropped(transaction, branch)
            self._uploads.clear()
        self._old.append(self._world)
        self._close_old()
        self._world = self._start()
        self._steps_since_start = 0

    @invariant()
    def readers_see_what_is_committed(self) -> None:
        assert self._world.visible() - self._visible_before == self._model.visible

    @invariant()
    def time_goes_on(self) -> None:
        self._steps_since_start += 1

    @invariant()
    def the_list_says_what_is_in_doubt(self) -> None:
        assert self._listed() == self._model.in_doubt()

    def teardown(self) -> None:
        for upload in self._uploads.values():
            upload.finish()
        for transaction, _, _ in self._listed():  # they would hold locks
            self._world.resolve(self._name(transaction), "abort")
        self._uploads.clear()
        self._old.append(self._world)
        self._close_old()

    def _name(self, transaction: str) -> str:
        return f"{self._application}.{transaction}"

    def _prepare(self, transaction: str, branch: str, content: str) -> None:
        body = BODIES[branch, content]
        answer = self._world.prepare(self._name(transaction), body)
        rival = self._model.rival(transaction)
        cell = self._model.prepare(transaction, branch, content)
        said = self._check(transaction, answer, {cell})
        assert said.get("vote") == {200: "commit", 425: None}.get(cell[0], "abort")
        if rival and self._model.row(transaction, branch).startswith("another"):
            assert said["committed"] == self._name(rival)

    def _listed(self) -> list[tuple[str, str, str]]:
        found = self._world.listed(f"?application={self._application}&limit=1000")
        return sorted((t.partition(".")[2], b, state) for t, b, state in found)

    def _check(
        self, transaction: str, answer: TestResponse, cells: set[Cell]
    ) -> dict[str, Any]:
        body = answer.get_json()
        assert (answer.status_code, body.get("state")) in cells, body
        assert body["transaction_id"] == self._name(transaction)
        by_hand = self._model.by_hand(transaction) and answer.status_code != 410
        assert body.get("resolved_by_hand", False) is by_hand
        self._look_up(transaction)
        return dict(body)

    def _look_up(self, transaction: str) -> None:
        answer = self._world.show(self._name(transaction))
        body = answer.get_json()
        found = {b["branch"]: b["state"] for b in body.get("branches", ())}
        expected = self._model.look_up(transaction)
        assert (answer.status_code, found) == expected

    def _refuses(self, transaction: str, forgotten_through: int) -> None:
        """forgotten_through at or above its own batch is no request at all."""
        name = self._name(transaction)
        for ask in (self._world.commit, self._world.abort):
            answer = ask(name, forgotten_through=forgotten_through)
            assert answer.status_code == 400

    def _close_old(self) -> None:
        while self._old and not self._uploads:
            self._old.pop().resource.close()


@pytest.mark.parametrize("where", CONTRACT_KINDS)
def test_any_history_is_answered_by_the_table(request, tmp_path, where):
    """Whatever happened before, a participant answers and holds what its table says."""
    kind, database = where
    if database == "postgresql":
        url = request.getfixturevalue("postgres_database")
        quick, thorough = 3, 40
    else:
        url = sqlite_url(tmp_path)
        quick, thorough = 8, 100
    start = functools.partial(ALL_KINDS[kind], url)
    machine = functools.partial(ParticipantMachine, start, spools=database == "sqlite")
    explore(machine, steps=30, quick=quick, thorough=thorough)
