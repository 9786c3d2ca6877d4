"""A correct sink, and sinks with a hidden fault each; `test_sink_contract.py` runs it.

What each must fail is beside it: the test that names the fault, then those that it
fails on the way. Without a module's name that pytest looks for.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from tracing_2pc import traced_sink
from tracing_2pc.core.errors import RejectedRowsError
from tracing_2pc.core.model import RejectedRow
from tracing_2pc.testing import SinkContract
from tracing_2pc.testing.promises import _OF_REFUSED
from tracing_2pc.testing.sink_contract import BESIDE

PATIENT, PAUSE = 600.0, 0.05
"""As in `support.waiting`, which is not there for a pytest of its own."""

SCHEMA = """
    CREATE TABLE IF NOT EXISTS prepared(id TEXT, branch TEXT, body TEXT);
    CREATE TABLE IF NOT EXISTS visible(id TEXT, branch TEXT, body TEXT);
    CREATE TABLE IF NOT EXISTS over(id TEXT PRIMARY KEY);
"""
MEMORY: dict[str, Any] = {}
KILLED_LATE = (
    "test_a_process_is_killed[between_two_commits]",
    "test_a_process_is_killed[after_every_commit]",
)


@traced_sink
class Correct:
    """Rows in a SQLite file; each phase is one local transaction."""

    def __init__(self, path: str) -> None:
        self.path = path

    @contextlib.contextmanager
    def store(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(
            sqlite3.connect(self.path, timeout=PATIENT)
        ) as connection:
            connection.executescript(SCHEMA)
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                yield connection

    def begin(self, context: Any) -> Any:
        id_, branch = str(context.transaction_id), str(context.branch)
        return {"id": id_, "branch": branch, "rows": []}

    def invoke(self, handle: Any, record: Any) -> None:
        handle["rows"].append(record)

    def pre_commit(self, handle: Any) -> None:
        with self.store() as store:
            self.refuse_late(store, handle)
            for row in handle.pop("rows"):
                store.execute(
                    "INSERT INTO prepared VALUES (:id, :branch, :body)",
                    {**handle, "body": json.dumps(row)},
                )

    def refuse_late(self, store: sqlite3.Connection, handle: Any) -> None:
        if store.execute("SELECT 1 FROM over WHERE id = :id", handle).fetchone():
            raise RuntimeError("the transaction is over")

    def commit(self, handle: Any) -> None:
        with self.store() as store:
            if self.count(store, "visible", handle):
                return
            if not self.count(store, "prepared", handle):
                raise LookupError("not prepared")
            self.show(store, handle)

    def show(self, store: sqlite3.Connection, handle: Any) -> None:
        where = "WHERE id = :id AND branch = :branch"
        store.execute(f"INSERT INTO visible SELECT * FROM prepared {where}", handle)
        store.execute(f"DELETE FROM prepared {where}", handle)

    def count(self, store: sqlite3.Connection, table: str, handle: Any) -> int:
        sql = f"SELECT count(*) FROM {table} WHERE id = :id AND branch = :branch"
        return int(store.execute(sql, handle).fetchone()[0])

    def abort(self, handle: Any) -> None:
        with self.store() as store:
            store.execute(
                "DELETE FROM prepared WHERE id = :id AND branch = :branch", handle
            )

    def abort_transaction(self, transaction_id: str, keep: list[Any]) -> None:
        with self.store() as store:
            self.end(store, transaction_id)
            self.drop(store, transaction_id)

    def end(self, store: sqlite3.Connection, transaction_id: str) -> None:
        store.execute("INSERT OR IGNORE INTO over VALUES (?)", (transaction_id,))

    def drop(self, store: sqlite3.Connection, transaction_id: str) -> None:
        store.execute("DELETE FROM prepared WHERE id = ?", (transaction_id,))


class Case(SinkContract):
    """The kit, for sinks of this file."""

    sink: type[Any]
    fails: tuple[str, ...] = ()

    def make_sink(self, where: Path) -> Any:
        return self.sink(f"{where}/store.db")

    def visible(self, where: Path) -> Iterable[Mapping[str, Any]]:
        return read("visible", f"{where}/store.db")

    def leftovers(self, where: Path) -> Iterable[Any]:
        return read("prepared", f"{where}/store.db")


def fails(*tests: str) -> Callable[[type[Any]], type[Any]]:
    """Make a case, `Test` and its name, of a sink that fails these."""

    def add(sink: type[Any]) -> type[Any]:
        about = {"sink": sink, "fails": tests, "__module__": __name__}
        name = f"Test{sink.__name__}"
        kit = TestRefuses if tests[0] in _OF_REFUSED else Case
        globals()[name] = type(name, (kit,), about)
        return sink

    return add


def until(holds: Callable[[], bool]) -> None:
    """Wait, as `support.waiting` does."""
    end = time.monotonic() + PATIENT
    while not holds() and time.monotonic() < end:
        time.sleep(PAUSE)


def read(table: str, path: str) -> list[Any]:
    """Return the rows in a table of a store."""
    with Correct(path).store() as store:
        return [json.loads(b) for (b,) in store.execute(f"SELECT body FROM {table}")]


class TestCorrect(Case):
    sink = Correct


class InOneCall(Correct):
    def commit_transaction(self, transaction_id: str, handles: list[Any]) -> None:
        for handle in handles:
            self.commit(handle)
        self.abort_transaction(transaction_id, handles)


class TestCorrectInOneCall(Case):
    test_a_process_is_killed = None  # type: ignore[assignment] - as of `TestCorrect`
    sink = InOneCall


class Refuses(Correct):
    """It names rows with a negative id."""

    def pre_commit(self, handle: Any) -> None:
        if bad := self.bad(handle["rows"]):
            raise RejectedRowsError([RejectedRow(n, "id", "negative") for n in bad])
        super().pre_commit(handle)

    def bad(self, rows: Sequence[Mapping[str, Any]]) -> list[int]:
        return [n for n, row in enumerate(rows) if row.get("id", 0) < 0]


class TestRefuses(Case):
    test_a_process_is_killed = None  # type: ignore[assignment] - as of `TestCorrect`
    sink = Refuses

    def refused(self, where: Path) -> Mapping[str, Any]:
        return {"id": -1, "amount": 0.0}


@fails("test_a_row_that_is_refused_is_named")
class TakesWhatItRefuses(Refuses):
    def bad(self, rows: Sequence[Mapping[str, Any]]) -> list[int]:
        return []


@fails("test_a_fault_of_the_schema_rejects_no_row")
class RejectsForAColumn(Refuses):
    def bad(self, rows: Sequence[Mapping[str, Any]]) -> list[int]:
        odd = [n for n, row in enumerate(rows) if "unheard_of" in row]
        return odd or super().bad(rows)


@fails("test_a_row_that_nobody_sees_rejects_none")
class RejectsForItsOwnTry(Refuses):
    """Where it looks at all: a row is bad."""

    def bad(self, rows: Sequence[Mapping[str, Any]]) -> list[int]:
        if not (bad := super().bad(rows)):
            return []
        prepared = read("prepared", self.path)
        return [n for n, row in enumerate(rows) if n in bad or row in prepared]


@fails(
    "test_commit_may_come_again", "test_a_replayed_batch_is_there_once", *KILLED_LATE
)
class CommitRaisesTheSecondTime(Correct):
    def commit(self, handle: Any) -> None:
        with self.store() as store:
            if not self.count(store, "prepared", handle):
                raise LookupError("not prepared")
            self.show(store, handle)


@fails(
    "test_commit_may_come_again", "test_a_replayed_batch_is_there_once", *KILLED_LATE
)
class CommitAddsTheSecondTime(Correct):
    """It drops what was prepared later, and so repeats it until then."""

    def begin(self, context: Any) -> Any:
        return {**super().begin(context), "kept": None}

    def pre_commit(self, handle: Any) -> None:
        handle["kept"] = json.dumps(handle["rows"][0])
        super().pre_commit(handle)

    def commit(self, handle: Any) -> None:
        with self.store() as store:
            if self.count(store, "visible", handle):
                sql = "INSERT INTO visible VALUES (:id, :branch, :kept)"
                store.execute(sql, handle)
                return
        super().commit(handle)


class TestPreparedRowsAreVisible(Case):
    fails = ("test_nothing_is_visible_before_commit",)
    sink = Correct

    def visible(self, where: Path) -> Iterable[Mapping[str, Any]]:
        return [*super().visible(where), *super().leftovers(where)]


@fails("test_an_abort_drops_nothing_else")
class AbortDropsAnother(Correct):
    def drop(self, store: sqlite3.Connection, transaction_id: str) -> None:
        begins = f"{transaction_id}%"
        store.execute("DELETE FROM prepared WHERE id LIKE ?", (begins,))


@fails(
    "test_commit_needs_nothing_but_the_handle",
    "test_batches_are_committed_at_once[threads]",
    "test_a_process_is_killed[after_the_decision]",
    *KILLED_LATE,
)
class HandleIsNotEnough(Correct):
    def pre_commit(self, handle: Any) -> None:
        super().pre_commit(handle)
        self.ids = {**getattr(self, "ids", {}), handle["branch"]: handle["id"]}

    def commit(self, handle: Any) -> None:
        super().commit({**handle, "id": self.ids[handle["branch"]]})


@fails("test_its_handle_is_plain_and_small")
class HandleIsAlive(Correct):
    def begin(self, context: Any) -> Any:
        return {**super().begin(context), "lock": threading.Lock()}


@fails("test_its_handle_is_plain_and_small")
class HandleKeepsTheRows(Correct):
    def pre_commit(self, handle: Any) -> None:
        rows = list(handle["rows"])
        super().pre_commit(handle)
        handle["rows"] = rows


@fails("test_a_process_is_killed[after_the_decision]", *KILLED_LATE)
class CommitsByMemory(Correct):
    def pre_commit(self, handle: Any) -> None:
        super().pre_commit(handle)
        MEMORY[handle["id"]] = True

    def commit(self, handle: Any) -> None:
        if handle["id"] not in MEMORY:
            raise LookupError("not prepared")
        super().commit(handle)


@fails("test_of_two_twins_one_is_visible", "test_a_task_that_comes_after_the[commit]")
class ForgetsTwins(Correct):
    def abort_transaction(self, transaction_id: str, keep: list[Any]) -> None:
        if not keep:
            super().abort_transaction(transaction_id, keep)


@fails("test_of_two_twins_one_is_visible")
class CommitsTwinsToo(Correct):
    def show(self, store: sqlite3.Connection, handle: Any) -> None:
        where = "WHERE id = :id"
        store.execute(f"INSERT INTO visible SELECT * FROM prepared {where}", handle)
        store.execute(f"DELETE FROM prepared {where}", handle)


@fails(
    "test_a_transaction_that_it_never_saw_can_be_aborted",
    "test_a_batch_may_have_no_rows",
    "test_abort_may_come_again",
)
class AbortRaisesWhenUnknown(Correct):
    def abort_transaction(self, transaction_id: str, keep: list[Any]) -> None:
        with self.store() as store:
            sql = "SELECT 1 FROM prepared WHERE id = ?"
            known = store.execute(sql, (transaction_id,)).fetchone()
        if not (keep or known):
            raise LookupError(transaction_id)
        super().abort_transaction(transaction_id, keep)


@fails(
    "test_a_task_can_drop_its_branch_after[begin]",
    "test_a_task_can_drop_its_branch_after[invoke]",
)
class AbortOfATaskRaises(Correct):
    def abort(self, handle: Any) -> None:
        if "rows" in handle:
            raise LookupError("not prepared")
        super().abort(handle)


@fails("test_a_task_can_drop_its_branch_after[pre_commit]")
class AbortOfATaskDropsNothing(Correct):
    def abort(self, handle: Any) -> None: ...


@fails(
    "test_a_task_that_comes_after_the[commit]",
    "test_a_task_that_comes_after_the[abort]",
    "test_an_abort_comes_while_a_task_prepares",
)
class TakesLateTasks(Correct):
    def pre_commit(self, handle: Any) -> None:
        if handle["branch"] == BESIDE:
            until(lambda: bool(self.decided(handle)))
        super().pre_commit(handle)

    def refuse_late(self, store: sqlite3.Connection, handle: Any) -> None: ...

    def decided(self, handle: Any) -> Any:
        with self.store() as store:
            sql = "SELECT 1 FROM over WHERE id = :id"
            return store.execute(sql, handle).fetchone()


@fails("test_it_has_every_phase")
class CannotFindLeftovers(Correct):
    abort_transaction = None  # type: ignore[assignment]


@fails("test_it_pickles")
class DoesNotPickle(Correct):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.lock = threading.Lock()


@fails("test_a_commit_of_what_is_gone_raises")
class CommitsWhatIsGone(Correct):
    def commit(self, handle: Any) -> None:
        with self.store() as store:
            self.show(store, handle)


@fails("test_commit_makes_every_row_visible_once")
class LosesAPartition(Correct):
    def commit(self, handle: Any) -> None:
        super().commit(handle)
        with self.store() as store:
            sql = "DELETE FROM visible WHERE id = :id AND branch LIKE '2.%'"
            store.execute(sql, handle)


@fails(
    "test_a_task_may_fail_after[pre_commit]",
    "test_a_task_may_fail_after[begin]",
    "test_a_task_may_fail_after[invoke]",
    "test_an_abort_drops_nothing_else",
    "test_a_task_that_comes_after_the[abort]",
    "test_an_abort_comes_while_a_task_prepares",
    "test_a_process_is_killed[while_it_writes]",
    "test_a_process_is_killed[before_pre_commit]",
    "test_a_process_is_killed[after_one_pre_commit]",
    "test_a_process_is_killed[after_every_pre_commit]",
    "test_a_process_is_killed[after_the_abort]",
)
class TakesAttemptsForOne(Correct):
    """It names what it keeps by application and batch."""

    def begin(self, context: Any) -> Any:
        handle = super().begin(context)
        return {**handle, "id": handle["id"].rpartition(".")[0]}

    def abort_transaction(self, transaction_id: str, keep: list[Any]) -> None:
        super().abort_transaction(transaction_id.rpartition(".")[0], keep)


@fails("test_a_batch_may_have_no_rows")
class FailsWithoutHandles(InOneCall):
    def commit_transaction(self, transaction_id: str, handles: list[Any]) -> None:
        self.last = handles[-1]
        super().commit_transaction(transaction_id, handles)


@fails(
    "test_batches_are_committed_at_once[threads]",
    "test_batches_are_committed_at_once[processes]",
)
class WritesAllOfItAgain(Correct):
    """Its commit reads what is visible, and then writes that and its branch."""

    def commit(self, handle: Any) -> None:
        with self.store() as store:
            if self.count(store, "visible", handle):
                return
            rows = store.execute("SELECT * FROM visible").fetchall()
        if "-at-once-" in handle["id"]:  # two of them have read before one writes
            application = handle["id"].partition(".")[0]
            Path(f"{self.path}.{application}").touch()
            until(lambda: len([*Path(self.path).parent.glob("*-at-once-*")]) > 1)
        with self.store() as store:
            store.execute("DELETE FROM visible")
            store.executemany("INSERT INTO visible VALUES (?, ?, ?)", rows)
            if not self.count(store, "prepared", handle):
                raise LookupError("not prepared")
            self.show(store, handle)


@fails("test_an_abort_comes_while_a_task_prepares")
class LooksBeforeItPrepares(Correct):
    """In a local transaction of its own; the abort comes between the two."""

    looked: ClassVar[dict[str, threading.Event]] = {}

    def begin(self, context: Any) -> Any:
        handle = super().begin(context)
        if handle["branch"] == BESIDE:
            self.looked[handle["id"]] = threading.Event()
        return handle

    def pre_commit(self, handle: Any) -> None:
        with self.store() as store:
            super().refuse_late(store, handle)
        if handle["branch"] == BESIDE:
            self.looked[handle["id"]].set()
            until(lambda: handle["id"] not in self.looked)
        super().pre_commit(handle)

    def refuse_late(self, store: sqlite3.Connection, handle: Any) -> None: ...

    def abort_transaction(self, transaction_id: str, keep: list[Any]) -> None:
        if looked := self.looked.get(transaction_id):
            looked.wait(PATIENT)
        super().abort_transaction(transaction_id, keep)
        self.looked.pop(transaction_id, None)


@fails("test_its_phases_are_in_the_trace")
class Untraced(Correct):
    __tpc_traced__ = True

    def begin(self, context: Any) -> Any:
        return Correct.begin.__wrapped__(self, context)
