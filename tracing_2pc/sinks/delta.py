"""A Delta table as a participant: prepared aside, visible by one commit of its log."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from tracing_2pc.core import content
from tracing_2pc.core.errors import (
    ConfigurationError,
    ParticipantRefusedError,
    ParticipantUnavailableError,
    RejectedRowsError,
)
from tracing_2pc.core.model import BranchContext, RejectedRow, TransactionId
from tracing_2pc.core.settings import adds_columns
from tracing_2pc.sinks.branch_files import (
    BranchFiles,
    exists,
    flush_folders,
    touch,
)
from tracing_2pc.sinks.delta_table import (
    add_fields,
    lengths_of,
    new_fields,
    open_table,
    partition_types,
    raise_if_unsupported,
    rejected_rows,
    schema_of,
    too_long,
    torn_in,
    value_fault,
)
from tracing_2pc.sinks.folder_sink import FolderHandle, FolderSink
from tracing_2pc.sinks.shared_folder import SharedFolder
from tracing_2pc.sinks.table_columns import fit_rows, mismatch
from tracing_2pc.tracing.decorator.traced_sink import traced_sink

if TYPE_CHECKING:
    import pyarrow as pa

_TRIES: Final = 10
"""A commit that fails was overtaken: by itself in another process, or by a change of
the table's metadata. Appends of others make none fail."""

_TRANSACTION: Final = "tracing_2pc.transaction"
_PARTICIPANT: Final = "tracing_2pc.participant"
_PROOF: Final = "tracing_2pc.proof"
_DIGEST_BITS: Final = 40


@dataclasses.dataclass(eq=False)
class DeltaHandle(FolderHandle):
    """A branch; its fields are what the decision log keeps."""

    table: str = ""  # its id
    partition_types: dict[str, str] = dataclasses.field(default_factory=dict)
    lengths: dict[str, int] = dataclasses.field(default_factory=dict)  # of texts

    def __post_init__(self) -> None:
        super().__post_init__()
        self.schema: Any = None  # the table's
        self.at_most: int | None = None  # rows that may be rejected; None: abort
        self.given = 0
        self.rejected: list[RejectedRow] = []

    @property
    def store(self) -> Hashable:
        """What it was written to: another folder may be a copy of the table's."""
        return self.folder, self.table


@traced_sink
class DeltaSink(FolderSink[DeltaHandle]):
    """Append to a Delta table in a folder that driver and executors share.

    A branch is durable in Parquet files aside before it votes. Commit links its files
    into the table's folder, where no reader looks, and then lists those of all branches
    in one commit of the table: a reader sees all rows of a batch or none. That commit
    also notes the batch and the attempt (`txn`), so that a commit that is repeated
    after a kill at any step appends nothing twice. It is flushed before it is
    acknowledged.

    Args:
        table: a path, or a `file:///` URL, of a table that exists, in a file system
            with hard links (POSIX): the same for the driver and all executors.
        name: the participant's. Two sinks of one job with one table need two names.
        evolve: with "add" a column that a batch has and the table has not is added,
            nullable, by a commit of the table of its own, before the tasks of the
            batch. It stays if the batch aborts or a process is killed.

    Raises:
        ConfigurationError: an object store, or a bad name.
    """

    handle_type = DeltaHandle
    _folder: SharedFolder
    _kind = "table"

    def __init__(
        self,
        table: str | os.PathLike[str],
        name: str | None = None,
        *,
        evolve: Literal["add"] | None = None,
    ) -> None:
        super().__init__(name or "delta")
        self._folder = self._shared(table, "commits by hard links")
        self._adds_columns = adds_columns(evolve)
        if not self._adds_columns:  # then nothing has to be learnt of Spark
            self.before_tasks = None  # type: ignore[assignment,method-assign]
        self._kept = set[TransactionId]()  # prepared, and never committed
        self._flushed = -1  # up to which version of the table

    def check_job(self, application: str) -> None:
        """Open the table, and note which folder the driver sees.

        Raises:
            ConfigurationError: there is none, it uses what we cannot write, or it is
                not ours to write.
        """
        raise_if_unsupported(open_table(self._folder.path))
        super().check_job(application)

    def before_tasks(self, schema: pa.Schema) -> None:
        """Add the columns that the table lacks; without `evolve` it is None.

        What is added is durable when this returns. Idempotent: of two jobs that add a
        column at one moment, the second finds it there, or tries again.

        Raises:
            ConfigurationError: the table cannot have such a column; nothing is added.
            ParticipantUnavailableError: not now.
        """
        failed = ""
        for _ in range(_TRIES):
            table = open_table(self._folder.path)
            raise_if_unsupported(table)
            if not (fields := new_fields(table, schema)):
                break
            failed = add_fields(table, fields)
        else:
            raise ParticipantUnavailableError(
                f"no column could be added to {self._folder.path}: {failed}"
            )
        if table.version() > self._flushed:  # by a process that was killed then, too
            self._flush_log(table.version())

    def begin(self, context: BranchContext) -> DeltaHandle:
        """Open a branch aside; a file of it is made with its first row.

        Raises:
            ConfigurationError: as `check_job`; or not the folder that the driver sees.
            ParticipantRefusedError: the batch is committed here already.
        """
        transaction = context.transaction_id
        table = open_table(self._folder.path)
        raise_if_unsupported(table)
        last, about = self._last(table, transaction), table.metadata()
        here = f"batch {last} of {transaction.application}"
        committed = here if last >= transaction.batch else None
        by = tuple(about.partition_columns)
        writer = partial(BranchFiles, self._folder.path, self._folder.aside)
        handle = self._begin(
            context, committed, lambda name: writer(f"{name}.parquet", by)
        )
        handle.table = str(about.id)
        handle.schema, handle.partition_types = schema_of(table), partition_types(table)
        handle.lengths = lengths_of(table)
        handle.at_most = context.rejects_at_most
        return handle

    def invoke_batch(self, handle: DeltaHandle, batch: pa.RecordBatch) -> None:
        """Take the rows of an Arrow batch, in the table's types; see `BranchFiles`.

        Raises:
            ConfigurationError: a column that the table does not have, of another type,
                null or missing where the table allows no null, or text that is longer
                than the table's.
            RejectedRowsError: as `pre_commit`, where there are too many.
        """
        if self._adds_columns:
            batch = batch.select(content.typed(batch.schema, handle.schema.names))
        empty = batch.slice(0, 0)  # whose columns are looked at, and no value
        if handle.at_most is not None and not mismatch(
            batch.schema, handle.schema, empty
        ):
            self._note_rejected(handle, batch)
            if handle.rejected:
                return  # the branch is written again without them
        where, fault_of = self._folder.path, partial(too_long, lengths=handle.lengths)
        for rows in fit_rows(batch, handle.schema, where, fault_of):
            handle.writer.write(rows)

    @staticmethod
    def _note_rejected(handle: DeltaHandle, batch: pa.RecordBatch) -> None:
        """Note the rows that the table refuses by a value."""
        handle.rejected += rejected_rows(
            batch, handle.schema, handle.lengths, handle.given
        )
        handle.given += batch.num_rows
        if len(handle.rejected) > (handle.at_most or 0):
            raise RejectedRowsError(handle.rejected)

    def pre_commit(self, handle: DeltaHandle) -> None:
        """Make the files durable, aside.

        Raises:
            RejectedRowsError: with rows that have a null or a text which the table
                refuses, where the job has `rejects`.
        """
        if handle.rejected:
            raise RejectedRowsError(handle.rejected)
        super().pre_commit(handle)
        handle.files = [
            {
                "path": file["path"],
                "size": file["bytes"],
                "partition_values": handle.writer.values[file["path"]],
                "modification_time": self._made(file["path"]),
                "stats": _stats(file["rows"]),
            }
            for file in handle.files
        ]

    def _made(self, path: str) -> int:
        return self._folder.aside(path).stat().st_mtime_ns // 1_000_000

    def commit(self, handle: DeltaHandle) -> None:
        """Commit a transaction of one branch: a second one of it is refused."""
        self.commit_transaction(handle.transaction, [handle])

    def commit_transaction(
        self, transaction_id: str, handles: Sequence[DeltaHandle]
    ) -> None:
        """Make these branches visible in one step, once, and remove what else there is.

        The table is the proof: the `txn` of the newest batch survives checkpoints,
        compaction and the clean-up of its log; that of older ones is in its history.

        Raises:
            ParticipantRefusedError: a file is gone, a receipt names one that its task
                cannot have made, the table was changed and they do not fit, or it asks
                for what `check_job` refuses, or it does not prove that it was this
                attempt that committed the batch, or one before a later one. Nothing
                was changed.
            ParticipantUnavailableError: not now; or this is not the folder that the
                tasks wrote to.
        """
        transaction, failed = TransactionId.parse(transaction_id), ""
        self._check_paths(transaction, handles)
        for _ in range(_TRIES):
            table = open_table(self._folder.path)
            if self._is_committed(table, transaction, handles):
                break
            self._link_checked(table, transaction, handles)
            if table.version() > self._flushed:  # by others, who do not flush it
                self._flush_log(table.version())
            failed = self._append(table, transaction, handles)
        else:
            raise ParticipantUnavailableError(
                f"{transaction} could not be committed in {self._folder.path}: {failed}"
                + torn_in(self._folder.path)
            )
        self._flush_log(table.version())
        self._restore(transaction, handles)
        # A batch commits once (rule 18): no other attempt at it can be needed.
        self._folder.clean_late(
            transaction, lambda t: t.batch == transaction.batch or self._is_late(t)
        )

    def _has(self, transaction: TransactionId) -> bool:
        table = open_table(self._folder.path)
        proof = table.transaction_version(self._app(transaction) + "/attempt") or 0
        newest = self._last(table, transaction), proof >> _DIGEST_BITS
        return newest == (transaction.batch, transaction.attempt)

    def _store(self) -> Hashable:
        table = open_table(self._folder.path)
        return self._folder.read_id(), str(table.metadata().id)

    # --- the table ------------------------------------------------------------------

    def _app(self, transaction: TransactionId) -> str:
        return f"tracing_2pc/{transaction.application}/{self.name}"

    def _last(self, table: Any, transaction: TransactionId) -> int:
        """Return the last batch of the application that is committed here, or -1."""
        last = table.transaction_version(self._app(transaction))
        return -1 if last is None else int(last)

    def _is_committed(
        self, table: Any, transaction: TransactionId, handles: Sequence[DeltaHandle]
    ) -> bool:
        if (last := self._last(table, transaction)) < transaction.batch:
            return False
        proof = self._proof(transaction, handles)
        if last == transaction.batch:
            noted = table.transaction_version(self._app(transaction) + "/attempt")
            committed = noted == proof
        else:  # a repeat that comes late
            committed = any(v.get(_PROOF) == str(proof) for v in table.history())
        if not committed:
            self._raise_if_elsewhere(handles)
            raise ParticipantRefusedError(
                f"{transaction} is decided commit, but {self._folder.path} has batch "
                f"{last} of {transaction.application}, and nothing proves that this "
                "attempt is in it: a job of the same application name with another log "
                "has written it, or the table's history is too short"
            )
        return True

    def _is_late(self, prepared: TransactionId) -> bool:
        """Tell if this was prepared for a batch that the table proves.

        Without the proof it may have been ended by a person, who may need it.
        """
        if prepared in self._kept:
            return False
        batch = f"{prepared.application}.{prepared.batch}."
        for version in open_table(self._folder.path).history():
            transaction = version.get(_TRANSACTION, "")
            if transaction.startswith(batch) and version.get(_PARTICIPANT) == self.name:
                return True
        self._kept.add(prepared)
        return False

    def _proof(self, transaction: TransactionId, handles: Sequence[DeltaHandle]) -> int:
        """Return what tells this commit from all others: its attempt, and its files."""
        names = "\n".join(sorted(file["path"] for file in _files(handles)))
        text = f"{self.name}\n{transaction}\n{names}"
        digest = hashlib.sha256(text.encode()).digest()
        return transaction.attempt << _DIGEST_BITS | int.from_bytes(digest[:5], "big")

    def _link_checked(
        self, table: Any, transaction: TransactionId, handles: Sequence[DeltaHandle]
    ) -> None:
        """Link the files to where the commit lists them. Idempotent.

        They stay aside as well: no vacuum looks there while the commit is pending.
        """
        root = self._folder.path
        self._raise_if_elsewhere(handles)
        try:
            raise_if_unsupported(table)
        except ConfigurationError as error:
            raise ParticipantRefusedError(
                f"{transaction} cannot be listed: since its vote {error}, or take the "
                "change back, and deliver the commit again"
            ) from None
        for handle, file in ((h, file) for h in handles for file in h.files):
            self._link(file)
            if fault := self._fault(table, handle, file):
                if self._is_committed(open_table(root), transaction, handles):
                    return  # meanwhile, and was compacted
                self._raise_if_elsewhere(handles)
                if not exists(root / file["path"]) and exists(
                    self._folder.aside(file["path"])
                ):
                    raise ParticipantUnavailableError(
                        f"{file['path']} of {transaction} was removed from {root} "
                        "before it was listed, such as by a vacuum: it is linked again"
                    )
                raise ParticipantRefusedError(
                    f"{file['path']} of {transaction} cannot be listed in {root}: "
                    f"{fault}"
                )
        flush_folders(root, [root])

    def _restore(
        self, transaction: TransactionId, handles: Sequence[DeltaHandle]
    ) -> None:
        """Link again what is listed, and was taken by a vacuum before it was listed."""
        root = self._folder.path
        gone = [file for file in _files(handles) if not exists(root / file["path"])]
        if not gone:
            return
        listed = {os.path.basename(uri) for uri in open_table(root).file_uris()}
        for file in gone:
            if file["path"] not in listed:
                continue  # compacted since
            self._link(file)
            if not exists(root / file["path"]):
                raise ParticipantRefusedError(
                    f"{file['path']} of {transaction} is listed in {root}, and gone: "
                    "somebody has removed it"
                )
        flush_folders(root, [root])

    def _link(self, file: dict[str, Any]) -> None:
        """Link a file to where the commit lists it. Idempotent.

        It is as young as its link: a vacuum takes what is old and not listed.
        """
        prepared = self._folder.aside(file["path"])
        # Not aside: another process has committed it, or the caller's check fails.
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            touch(prepared)
            os.link(prepared, self._folder.path / file["path"])

    def _fault(
        self, table: Any, handle: DeltaHandle, file: dict[str, Any]
    ) -> str | None:
        """Say why a file would break readers: a commit takes whatever it lists."""
        from pyarrow import parquet

        path, by = self._folder.path / file["path"], partition_types(table)
        try:
            if (size := path.stat().st_size) != file["size"]:
                return f"it has {size} bytes, and {file['size']} were prepared"
            footer = parquet.read_metadata(path)
        except FileNotFoundError:
            return "it is gone, and no commit lists it: somebody has removed it"
        values = file["partition_values"]
        if by != handle.partition_types or by.keys() != values.keys():
            now = (f"{name}, of type {kind}" for name, kind in by.items())
            return f"the table is now partitioned by {', '.join(now) or 'nothing'}"
        if file["stats"] != _stats(footer.num_rows):
            return f"it has {footer.num_rows} rows, the receipt says {file['stats']!r}"
        wanted = schema_of(table)
        fields = [field for field in wanted if field.name not in by]
        have, lengths = footer.schema.to_arrow_schema(), lengths_of(table)
        fault = mismatch(have, fields) or value_fault(values, wanted, lengths)
        changed = {n: k for n, k in lengths.items() if k != handle.lengths.get(n)}
        if names := [name for name in have.names if name in changed]:  # since the vote
            with parquet.ParquetFile(path) as prepared:
                batches = prepared.iter_batches(columns=names)
                faults = (too_long(rows, changed) for rows in batches)
                fault = fault or next(filter(None, faults), None)
        return fault

    def _append(
        self, table: Any, transaction: TransactionId, handles: Sequence[DeltaHandle]
    ) -> str:
        """Try to list the files; return why it failed. The table tells if it did."""
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import DeltaError
        from deltalake.transaction import AddAction

        app, proof = self._app(transaction), self._proof(transaction, handles)
        actions = [
            AddAction(
                file["path"],
                file["size"],
                file["partition_values"],
                file["modification_time"],
                data_change=True,
                stats=file["stats"],
            )
            for file in _files(handles)
        ]
        properties = CommitProperties(
            custom_metadata={
                _TRANSACTION: str(transaction),
                _PARTICIPANT: self.name,
                _PROOF: str(proof),
            },
            app_transactions=[
                Transaction(app, transaction.batch),
                Transaction(f"{app}/attempt", proof),
            ],
        )
        by = table.metadata().partition_columns
        try:
            table.create_write_transaction(
                actions, "append", table.schema(), by, commit_properties=properties
            )
        except DeltaError as error:
            return str(error).partition("\n")[0]
        return "it is not there after its commit"

    def _flush_log(self, version: int) -> None:
        """Make durable what the table's log has, up to a version: deltalake does not.

        Before a commit, too: it is not read without those below it.
        """
        log = self._folder.path / "_delta_log"
        for path in log.iterdir():
            if path.name > f"{self._flushed:020}.json":
                with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                    os.fsync(file.fileno())
        flush_folders(log, [log])
        self._flushed = version


def _stats(rows: int) -> str:
    return json.dumps({"numRecords": rows})


def _files(handles: Sequence[DeltaHandle]) -> list[dict[str, Any]]:
    return [file for handle in handles for file in handle.files]
