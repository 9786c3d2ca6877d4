"""A small log and a small journal on SQLite, and what is read of them when damaged."""

from __future__ import annotations

import contextlib
import operator
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from support.branches import Branch
from support.kinds import tagged_rows
from support.participant import World as Participant

from power.worlds import _branches
from tracing_2pc.core.errors import TwoPhaseError
from tracing_2pc.core.log_reader import TransactionFilter
from tracing_2pc.core.model import BranchId, TransactionId, branch_receipts
from tracing_2pc.core.ports import Opening
from tracing_2pc.core.states import Decision, TransactionState, Vote
from tracing_2pc.store import SqlDecisionLog, open_log
from tracing_2pc.store.engines.sqlite import storage_faults

PAGE: Final = 512
"""Bytes: the smallest that SQLite has. Every byte of a small file is then of use."""

Answers = Mapping[str, Any]


class Damage(NamedTuple):
    """What became of a damaged file.

    Args:
        wrong: questions with another answer than before, and no error.
        unclear: what was raised and is not one line of ours.
        decided: records of which another state or decision was read.
        reported: `storage_faults` names it.
    """

    wrong: list[str]
    unclear: list[str]
    decided: list[str]
    reported: bool


class Error(str):
    """Instead of an answer: what was raised, or a refusal that is to be repeated."""

    __slots__ = ()


def _new(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.executescript(f"PRAGMA page_size = {PAGE}; VACUUM")


class SmallLog:
    """Transactions in each state, as far as a decision goes."""

    name = "log.db"

    def make(self, folder: Path) -> None:
        """Write it; all is in one file then."""
        _new(folder / self.name)
        with contextlib.closing(self._open(folder)) as log:
            log.create()
            for application, batches in (("orders", 3), ("other", 2)):
                for batch in range(batches):
                    self._add(log, application, batch)

    def _add(self, log: SqlDecisionLog, application: str, batch: int) -> None:
        names = ("ledger", "notifier")
        for run in ("a", "b"):
            about = {"run": run + str(batch), "query": application, "timeout": 3600.0}
            begun = log.begin(
                application, batch, Opening(participants=names, carrier={}, **about)
            ).record
        if (application, batch) == ("other", 1):
            return  # active
        votes = dict.fromkeys(names, Vote.COMMIT)
        receipts = branch_receipts(BranchId(0, 0), 3, "digest", votes)
        log.decide(begun.id, Decision.COMMIT, receipts)
        log.acknowledge(begun.id, "ledger")
        if batch < 2:
            log.acknowledge(begun.id, "notifier")
            log.finish(begun.id)

    def _open(self, folder: Path) -> SqlDecisionLog:
        return open_log(f"sqlite:///{folder / self.name}")

    def ask(self, folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
        """Yield what a driver, a recovery and a person ask."""
        with contextlib.closing(self._open(folder)) as log:
            for application, batches in (("orders", 3), ("other", 2)):
                for batch in range(batches):
                    for attempt in (1, 2):
                        id_ = TransactionId(application, batch, attempt)
                        yield f"read {id_}", lambda of=id_: _of(log.read(of))
            yield "unfinished", lambda: [_of(r) for r in log.unfinished()]
            active = TransactionId("other", 1, 2)
            yield "expire", lambda: _of(log.expire(active))
            again = {"run": "b2", "query": "orders", "timeout": 3600.0}
            names = ("ledger", "notifier")
            begin = {"participants": names, "carrier": {}, **again}
            yield "replay", lambda: _replay(log.begin("orders", 2, Opening(**begin)))
            ids = [TransactionId("orders", batch, 2) for batch in range(3)]
            yield "list", lambda: _listed_by(log, TransactionFilter())
            yield "open", lambda: _listed_by(log, TransactionFilter(unfinished=True))
            at = TransactionFilter("orders", participant="ledger")
            yield "at ledger", lambda: _listed_by(log, at)
            yield "states", lambda: log.states_of(ids)
            yield "forgotten", log.forgotten_by_application
            yield "owner", lambda: log.application_of("orders")
            yield "waiting", lambda: [*log.deliveries_of_unfinished()]
            yield "commits", lambda: [_of(r) for r in log.newest_commits(0.0)]

    def faults(self, folder: Path) -> list[str]:
        """Return what the storage check says."""
        with contextlib.closing(self._open(folder)) as log:
            return storage_faults(log._database)


def _listed_by(log: SqlDecisionLog, chosen: TransactionFilter) -> Any:
    """Return what a list shows that is not of one moment."""
    rows = log.transactions(chosen)
    asked = operator.attrgetter("transaction", "state", "decision", "pending", "untold")
    return sorted(map(asked, rows))


def _replay(begun: Any) -> Any:
    return begun.replay, _of(begun.record)


def _of(record: Any) -> Any:
    """Return what the protocol goes by.

    Receipts of what is committed everywhere only say whom a replay asks.
    """
    if record is None:
        return None
    receipts = () if record.state is TransactionState.COMMITTED else record.receipts
    return (
        *(str(record.id), record.state, record.decision, record.run),
        *(record.participants, record.given_up, receipts, sorted(record.acknowledged)),
    )


class SmallJournal:
    """A participant's journal: prepared, committed and aborted branches."""

    name = "ledger.db"

    def make(self, folder: Path) -> None:
        _new(folder / self.name)
        with self._open(folder) as participant:
            for batch in range(4):
                branches = self._chosen(batch)
                for branch in branches:
                    assert participant.prepare(_id(batch), branch).status_code == 200
                if batch == 1:
                    assert participant.abort(_id(batch)).status_code == 200
                elif batch < 3:
                    assert participant.commit(_id(batch), *branches).status_code == 200

    def _chosen(self, batch: int) -> list[Branch]:
        return _branches(batch)

    @contextlib.contextmanager
    def _open(self, folder: Path) -> Iterator[Participant]:
        participant = tagged_rows(f"sqlite:///{folder / self.name}")
        participant.app.logger.disabled = True
        try:
            yield participant
        finally:
            participant.resource.close()

    def ask(self, folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
        with self._open(folder) as participant:
            for batch in range(4):
                show = lambda of=batch: _told(participant.show(_id(of)))  # noqa: E731
                yield f"show {_id(batch)}", show
            yield "list", lambda: _listed(participant)
            for batch in range(4):
                order = lambda of=batch: _told(  # noqa: E731
                    participant.commit(_id(of), *self._chosen(of), once=True)
                )
                yield f"commit {_id(batch)}", order
            yield "visible", lambda: _rows(participant)

    def faults(self, folder: Path) -> list[str]:
        with self._open(folder) as participant:
            return storage_faults(participant.resource._database)


def _rows(participant: Participant) -> Any:
    try:
        return participant.visible()
    except sa.exc.SQLAlchemyError as error:
        return Error(type(error).__name__)


def _id(batch: int) -> str:
    return f"orders.{batch}.1"


def _told(answer: Any) -> Any:
    told = answer.get_json()
    if answer.status_code != 200:  # whatever the refusal: it acknowledges nothing
        return Error(told["detail"])
    branches = [
        (b["branch"], b["state"], b["rows"], b["digest"])
        for b in told.get("branches", ())
    ]
    return answer.status_code, told.get("state"), branches


def _listed(participant: Participant) -> Any:
    answer = participant.client.get("/transactions")
    return (answer.status_code < 500 and participant.listed()) or Error("no list")


STORES: Final[Mapping[str, Any]] = {"log": SmallLog(), "journal": SmallJournal()}


def answers(store: Any, folder: Path) -> Answers:
    """Ask all; an error of ours, in one line, is an `Error`."""
    found: dict[str, Any] = {}
    asking = store.ask(folder)
    while True:
        question = "open"
        try:
            question, ask = next(asking)
            found[question] = ask()
        except StopIteration:
            return found
        except TwoPhaseError as error:
            unclear = "\n" in str(error)
            found[question] = Error(f"{'unclear: ' * unclear}{error}")
        except Exception as error:  # noqa: BLE001 - not one of ours
            found[question] = Error(f"unclear: {type(error).__name__}: {error}")
        if question == "open":
            return found


def judge(store: Any, folder: Path, truth: Answers) -> Damage:
    """Compare what is answered of a damaged file with the truth."""
    reported = _is_reported(store, folder)
    found = answers(store, folder)
    errors = {q: a for q, a in found.items() if isinstance(a, Error)}
    if any(question.startswith("commit") for question in errors):
        found.pop("visible", None)  # less was committed
    others = {q: a for q, a in found.items() if a not in (truth.get(q), errors.get(q))}
    wrong = [f"{question}: {answer}" for question, answer in others.items()]
    # Nobody else uses the file: a lock that is waited for was not given back.
    unclear = [a for a in errors.values() if a.startswith("unclear") or "lock" in a]
    decided = [q for q, a in others.items() if a and q.startswith("read")]
    decided = [q for q in decided if others[q][:3] != truth[q][:3]]
    return Damage(wrong, unclear, decided, reported)


def _is_reported(store: Any, folder: Path) -> bool:
    try:
        return bool(store.faults(folder))
    except TwoPhaseError:
        return True
