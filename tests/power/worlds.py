"""What writes, what it promises while it does, and what must be so after any loss.

python -m power.worlds WORLD FOLDER [FAULT]    write; a fault is one of `FAULTS`
python -m power.worlds WORLD FOLDER "" N…      beside `refuse.c`: a full disk at each
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol
from unittest import mock

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow import dataset
from support.branches import Branch, records
from support.file_job import prepared
from support.kinds import KINDS, sqlite_url
from support.participant import World as Participant

from power.recording import DISK, Marks, Promise
from tracing_2pc import DeltaSink, FileSink
from tracing_2pc.core.errors import ParticipantUnavailableError
from tracing_2pc.core.model import BranchId, TransactionId, branch_receipts
from tracing_2pc.core.ports import Opening
from tracing_2pc.core.states import FINAL, Decision, Vote
from tracing_2pc.inbox import Inbox, NewEvent, Offset
from tracing_2pc.sinks import branch_files, delta_folder, files, shared_folder
from tracing_2pc.store import SqlDecisionLog, open_log
from tracing_2pc.store.engines import sqlite

Promises = Sequence[Promise]


class World(Protocol):
    """One kind of store, on a disk of its own."""

    def prepare(self, disk: Path) -> None:
        """Make what is there before, durable."""

    def write(self, disk: Path, mark: Callable[..., None]) -> None:
        """Write, and note each promise when it is made."""

    def judge(self, disk: Path, promises: Promises) -> Iterator[str]:
        """Open it again by the real code; yield what was promised and is not so."""


def of_kind(promises: Promises, *kinds: str) -> list[Mapping[str, Any]]:
    """Return what promises of some kinds are about."""
    return [promise.about for promise in promises if promise.kind in kinds]


# --- the decision log -------------------------------------------------------------


class Log:
    """A driver's calls of its log: commits, aborts, restarts, what is forgotten."""

    def prepare(self, disk: Path) -> None:
        """It is made by its first use."""

    def write(self, disk: Path, mark: Callable[..., None]) -> None:
        with contextlib.closing(open_log(f"sqlite:///{disk}/log.db")) as log:
            log.create()
            for batch in range(7):
                _apply(log, batch, mark)
                if batch == 3:
                    log.close()  # the last connection moves all to the file
                if batch == 5:
                    with contextlib.closing(_second(disk)) as other:
                        other.execute("PRAGMA wal_checkpoint(PASSIVE)")
                if batch in (2, 4):
                    log.forget("orders", finished_before=2e12, limit=10)

    def judge(self, disk: Path, promises: Promises) -> Iterator[str]:
        with contextlib.closing(open_log(f"sqlite:///{disk}/log.db")) as log:
            log.create()
            forgotten = log.forgotten_by_application().get("orders")
            forgotten = -1 if forgotten is None else forgotten
            for told in of_kind(promises, "begun"):
                if told["forgotten_through"] not in (None, *range(forgotten + 1)):
                    yield f"forgotten_through fell below {told['forgotten_through']}"
            found = {}
            for about in of_kind(promises, "begun", "decided"):
                id_ = TransactionId.parse(about["id"])
                found[id_] = record = log.read(id_)
                if record is None and id_.batch > forgotten:
                    yield f"{id_} was begun, and is not on record"
                if record and record.decision != about.get("decision", record.decision):
                    yield f"{id_} was decided {about['decision']}: {record.decision}"
            for record in filter(None, found.values()):
                if record.acknowledged and record.decision is None:
                    yield f"{record.id} is acknowledged, and not decided"
                if record.state in FINAL and record.pending:
                    yield f"{record.id} is finished, and not acknowledged"
            with contextlib.closing(_second(disk)) as other:
                if (
                    fault := other.execute("PRAGMA integrity_check").fetchone()[0]
                ) != "ok":
                    yield f"the file is damaged: {fault}"
            begun = [
                TransactionId.parse(i["id"]).batch for i in of_kind(promises, "begun")
            ]
            _apply(log, max(begun, default=-1) + 1, lambda kind, **about: None)


def _second(disk: Path) -> Any:
    import sqlite3

    return sqlite3.connect(f"{disk}/log.db")


def _apply(log: SqlDecisionLog, batch: int, mark: Callable[..., None]) -> None:
    """Begin a batch, twice if it is odd, decide it, and hear from its participants."""
    for run in ("a", "b") if batch % 2 else ("a",):
        begun = log.begin(
            "orders",
            batch,
            Opening(
                run=f"{batch}{run}",
                query="query",
                participants=("ledger", "notifier"),
                carrier={},
            ),
        ).record
        told = begun.forgotten_through
        mark("begun", id=str(begun.id), forgotten_through=told)
    votes = dict.fromkeys(begun.participants, Vote.COMMIT)
    receipts = branch_receipts(BranchId(0, 0), 3, "digest" * (1 + 90 * batch), votes)
    decided = log.decide(begun.id, Decision.COMMIT, receipts)
    assert decided is not None
    mark("decided", id=str(begun.id), decision="commit")
    if batch % 2:
        log.acknowledge(begun.id, "ledger")
        log.acknowledge(begun.id, "notifier")
        log.finish(begun.id)
    else:
        log.acknowledge_last(decided, {"ledger": None, "notifier": None})


# --- participants -----------------------------------------------------------------


class Journal:
    """A participant's journal and rows: votes, commits, aborts, several branches."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def prepare(self, disk: Path) -> None:
        """It is made by its first use."""

    def _open(self, disk: Path) -> Participant:
        participant = KINDS[self._kind](sqlite_url(disk, "ledger"))
        participant.resource.start = lambda: None  # nothing is sent
        return participant

    def write(self, disk: Path, mark: Callable[..., None]) -> None:
        participant = self._open(disk)
        for batch in range(6):
            id_ = f"orders.{batch}.1"
            branches = _branches(batch)
            for branch in branches:
                assert participant.prepare(id_, branch).status_code == 200
                mark("voted", id=id_, branch=branch.branch, rows=branch.rows)
            if batch in (1, 4):
                mark("abort", id=id_)
                assert participant.abort(id_).status_code == 200
                mark("aborted", id=id_)
                continue
            mark("commit", id=id_)
            through = batch - 2 if batch > 2 else None
            chosen = branches[:1] + branches[2:]
            done = participant.commit(id_, *chosen, forgotten_through=through)
            assert done.status_code == 200
            mark("committed", id=id_, through=through)
            if batch == 3:
                participant.resource.close()
        participant.resource.close()

    def judge(self, disk: Path, promises: Promises) -> Iterator[str]:
        participant = self._open(disk)
        participant.resource.open()
        try:
            yield from self._judge(participant, promises)
        finally:
            participant.resource.close()

    def _judge(self, participant: Participant, promises: Promises) -> Iterator[str]:
        asked = {about["id"] for about in of_kind(promises, "commit")}
        committed = {about["id"] for about in of_kind(promises, "committed")}
        aborted = {about["id"] for about in of_kind(promises, "abort")}
        sealed = {about["id"] for about in of_kind(promises, "aborted")}
        voted: dict[str, list[str]] = {}
        for about in of_kind(promises, "voted"):
            voted.setdefault(about["id"], []).append(about["branch"])
        visible, least, most = participant.visible(), 0, 0
        for id_ in voted:
            rows = sum(branch.rows for branch in _chosen(id_))
            least += rows * (id_ in committed)
            most += rows * (id_ in asked)
        if not least <= visible <= most:
            yield f"{visible} rows are visible, of {least} to {most}"
        for id_, names in voted.items():
            shown = participant.show(id_).get_json()
            if shown.get("state") == "forgotten":
                continue
            states = {b["branch"]: b["state"] for b in shown.get("branches", ())}
            for name in names:
                allowed = {"prepared"} if id_ not in committed | sealed else set()
                allowed |= {"committed", "aborted"} if id_ in asked else set()
                allowed |= {"aborted"} if id_ in aborted else set()
                if states.get(name) not in allowed:
                    yield f"{id_}, branch {name}, has voted: {states.get(name)}"
            if id_ in aborted:
                if participant.abort(id_).status_code != 200:
                    yield f"{id_} cannot be aborted"
                continue
            if len(names) < len(_branches(int(id_.split(".")[1]))):
                continue
            answer = participant.commit(id_, *_chosen(id_))
            if answer.status_code != 200:
                yield f"{id_} has voted, and cannot commit: {answer.get_json()}"
            most += sum(b.rows for b in _chosen(id_)) * (id_ not in asked)
        if (visible := participant.visible()) != most:
            yield f"{visible} rows are visible at the end, and {most} were committed"


def _branches(batch: int) -> list[Branch]:
    """Return the branches of a batch; the second of several is of a twin."""
    return [
        records(
            f"{n}.{n}",
            id=[batch * 100 + n * 10 + row for row in range(1 + n)],
            text=["x" * (300 if batch % 2 else 3)] * (1 + n),
        )
        for n in range(1 + batch % 3)
    ]


def _chosen(id_: str) -> list[Branch]:
    branches = _branches(int(id_.split(".")[1]))
    return branches[:1] + branches[2:]


class Events:
    """An inbox: what a producer was told to be stored is read, at that place."""

    def prepare(self, disk: Path) -> None:
        """It is made by its first use."""

    def _open(self, disk: Path) -> Inbox:
        return Inbox(f"sqlite:///{disk}/inbox.db")

    def write(self, disk: Path, mark: Callable[..., None]) -> None:
        with contextlib.closing(self._open(disk)) as inbox:
            for n in range(8):
                stored = inbox.store("shop", _events(n))
                for one in stored:
                    mark("stored", id=one.id, position=one.position)
                if n == 4:
                    inbox.close()

    def judge(self, disk: Path, promises: Promises) -> Iterator[str]:
        with contextlib.closing(self._open(disk)) as inbox:
            inbox.open()
            found = {e.id: e.position for e in inbox.read(Offset(), inbox.end())}
            for about in of_kind(promises, "stored"):
                if found.get(about["id"]) != about["position"]:
                    yield f"{about}, and it is at {found.get(about['id'])}"
            for n in range(8):
                for one in inbox.store("shop", _events(n)):
                    if one.position != found.setdefault(one.id, one.position):
                        yield f"{one.id} is stored twice"
            ids = [e.id for e in inbox.read(Offset(), inbox.end())]
            if sorted(ids) != sorted(found):
                yield f"not each event once: {ids}"


def _events(n: int) -> list[NewEvent]:
    return [NewEvent(f"{n}.{k}", f'"{"x" * 700 * n}"') for k in range(1 + n % 2)]


# --- folders ----------------------------------------------------------------------


class Folder:
    """A sink of files: votes, commits, an abort, more columns, folders of values."""

    def prepare(self, disk: Path) -> None:
        """It is made by its first use."""

    def _open(self, disk: Path) -> Any:
        return FileSink(disk / "out", partition_by="region")

    def _visible(self, disk: Path) -> list[int]:
        files = [p for p in (disk / "out").rglob("*.parquet") if ".tpc" not in p.parts]
        files = [p for p in files if "_tpc" not in p.parts]
        return _ids(dataset.dataset(files).to_table()) if files else []

    def write(self, disk: Path, mark: Callable[..., None]) -> None:
        sink = self._open(disk)
        sink.check_job("orders")
        for batch in range(5):
            id_ = TransactionId("orders", batch, 1)
            handles = []
            for n, rows in enumerate(self.rows(batch)):
                handles.append(prepared(sink, rows, of=id_, branch=f"{n}.{n}"))
                said = dataclasses.asdict(handles[-1])
                mark("voted", id=str(id_), handle=said, rows=_ids(rows))
            if batch == 2:
                mark("abort", id=str(id_))
                sink.abort_transaction(str(id_), [])
                continue
            self.meanwhile(disk)
            mark("commit", id=str(id_))
            sink.commit_transaction(str(id_), handles)
            mark("committed", id=str(id_))

    def meanwhile(self, disk: Path) -> None:
        """Do what others do in the folder."""

    def rows(self, batch: int) -> list[pa.RecordBatch]:
        """Return two partitions; later batches have a column more."""
        more = {"extra": ["e", "f"]} if batch >= 3 else {}
        return [
            pa.RecordBatch.from_pydict(
                {"id": [first, first + 1], "region": ["north", f"r{batch}"], **more}
            )
            for first in (batch * 4, batch * 4 + 2)
        ]

    def judge(self, disk: Path, promises: Promises) -> Iterator[str]:
        sink = self._open(disk)
        sink.check_job("orders")
        committed = {about["id"] for about in of_kind(promises, "committed")}
        asked = {about["id"] for about in of_kind(promises, "commit")}
        aborted = {about["id"] for about in of_kind(promises, "abort")}
        handles: dict[str, list[Any]] = {}
        ids: dict[str, list[int]] = {}
        for about in of_kind(promises, "voted"):
            handle = sink.handle_type(**about["handle"])
            handles.setdefault(about["id"], []).append(handle)
            ids.setdefault(about["id"], []).extend(about["rows"])
        visible = self._visible(disk)
        least = sorted(n for id_ in committed for n in ids[id_])
        most = sorted(n for id_ in asked for n in ids[id_])
        missing, foreign = {*least} - {*visible}, {*visible} - {*most}
        if missing or foreign or len({*visible}) < len(visible):
            yield f"visible: {visible}; committed: {least}, asked: {most}"
        for id_ in handles:
            if id_ not in aborted and len(handles[id_]) == 2:
                sink.commit_transaction(id_, handles[id_])
                sink.commit_transaction(id_, handles[id_])
        done = [i for i in handles if i not in aborted and len(handles[i]) == 2]
        most = sorted(n for id_ in done for n in ids[id_])
        if self._visible(disk) != most:
            yield f"visible at the end: {self._visible(disk)}; committed: {most}"


class Delta(Folder):
    """A Delta table."""

    def prepare(self, disk: Path) -> None:
        schema = pa.schema([("id", pa.int64()), ("region", pa.string())])
        DeltaTable.create(
            disk / "out", schema, configuration={"delta.checkpointInterval": "2"}
        )

    def _open(self, disk: Path) -> Any:
        return DeltaSink(disk / "out")

    def _visible(self, disk: Path) -> list[int]:
        return _ids(DeltaTable(disk / "out").to_pyarrow_dataset().to_table())

    def judge(self, disk: Path, promises: Promises) -> Iterator[str]:
        """A table's writers flush nothing: do what is said of what is not whole."""
        try:
            yield from super().judge(disk, promises)
        except (ParticipantUnavailableError, DeltaError) as error:
            log = disk / "out" / "_delta_log"
            _, _, named = str(error).partition("leaves the newest: ")
            names = named.partition(". Move")[0].split(", ") if named else []
            # A reader may find out what no check of a checkpoint does.
            names = names or [p.name for p in log.glob("*checkpoint*")]
            for name in names:
                (log / name).unlink()
            yield from super().judge(disk, promises)

    def meanwhile(self, disk: Path) -> None:
        """Change the table's metadata: its writer flushes nothing."""
        DeltaTable(disk / "out").alter.set_table_description("of orders")

    def rows(self, batch: int) -> list[pa.RecordBatch]:
        return [rows.select(["id", "region"]) for rows in super().rows(batch)]


def _ids(table: Any) -> list[int]:
    return sorted(table.column("id").to_pylist())


WORLDS: Final[Mapping[str, World]] = {
    "decision log": Log(),
    "journal of TaggedRows": Journal("TaggedRows"),
    "journal of Outbox": Journal("Outbox"),
    "inbox": Events(),
    "FileSink": Folder(),
    "DeltaSink": Delta(),
}


# --- faults: what the rig must see ------------------------------------------------


def _nothing(*_: Any) -> None:
    pass


_OFF: Final = ("PRAGMA synchronous = OFF", "BEGIN IMMEDIATE")


@contextlib.contextmanager
def _patched(*places: tuple[Any, str, Any]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for place, name, value in places:
            stack.enter_context(mock.patch.object(place, name, value))
        yield


FAULTS: Final[
    Mapping[str, tuple[tuple[str, ...], tuple[tuple[Any, str, Any], ...]]]
] = {
    "SQLite does not flush": (
        ("decision log", "journal of TaggedRows", "journal of Outbox", "inbox"),
        ((sqlite, "_WRITE", _OFF), (sqlite, "_RELAXED", _OFF)),
    ),
    "SQLite flushes at checkpoints only": (
        ("decision log", "journal of TaggedRows", "journal of Outbox", "inbox"),
        ((sqlite, "_WRITE", sqlite._RELAXED),),
    ),
    "folders are not flushed": (
        ("FileSink", "DeltaSink"),
        tuple(
            (place, "flush_folders", _nothing)
            for place in (branch_files, shared_folder, files, delta_folder)
        ),
    ),
    "files are not flushed": (("FileSink", "DeltaSink"), ((os, "fsync", _nothing),)),
    "a table's log is not flushed": (
        ("DeltaSink",),
        ((delta_folder.LocalFolder, "flush_log", _nothing),),
    ),
}
"""Flushes left out, with the worlds in which it must be seen."""


def main(world: str, folder: str, fault: str, *moments: str) -> None:
    """Write; strace looks on. With moments: so often, each in a process of its own."""
    places = FAULTS[fault][1] if fault else ()
    with _patched(*places):
        if not moments:
            WORLDS[world].write(Path(folder) / DISK, Marks(Path(folder)))
    for moment in moments:
        within = Path(folder) / moment
        if not (process := os.fork()):
            _write_while_full(world, within, moment)
            os._exit(0)
        os.waitpid(process, 0)
        if not (within / "refused").exists():
            return  # no writer writes so often


def _write_while_full(world: str, folder: Path, moment: str) -> None:
    """Write to a disk that is full at that write; note what was raised, if anything."""
    disk = folder / DISK
    disk.mkdir(parents=True)
    WORLDS[world].prepare(disk)
    os.environ |= {"REFUSE": f"{moment} filled", "REFUSE_BELOW": str(disk)}
    os.environ["REFUSED"] = str(folder / "refused")
    error = ""
    try:
        WORLDS[world].write(disk, Marks(folder))
    except BaseException as raised:  # noqa: BLE001 - it is judged elsewhere
        error = f"{type(raised).__module__}: {type(raised).__name__}: {raised}"
    (folder / "error").write_text(error)


if __name__ == "__main__":
    main(*sys.argv[1:])
