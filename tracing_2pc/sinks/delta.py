"""A Delta table as a participant: prepared aside, visible by one commit of its log."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from tracing_2pc.core import content
from tracing_2pc.core.errors import (
    ConfigurationError,
    ParticipantRefusedError,
    ParticipantUnavailableError,
)
from tracing_2pc.core.failpoints import failpoint
from tracing_2pc.core.model import BranchContext, TransactionId
from tracing_2pc.core.settings import adds_columns
from tracing_2pc.sinks.branch_files import MAX_FILES, BranchFiles
from tracing_2pc.sinks.delta_folder import LocalFolder, ObjectFolder, TableFolder
from tracing_2pc.sinks.delta_table import (
    add_fields,
    lengths_of,
    new_fields,
    partition_types,
    raise_if_unsupported,
    rejected_rows,
    schema_of,
    too_long,
    value_fault,
)
from tracing_2pc.sinks.folder_sink import FolderSink, TableHandle, numbered
from tracing_2pc.sinks.object_store import AT_ONCE, S3Folder, is_object_store, line_of
from tracing_2pc.sinks.shared_folder import stem_of
from tracing_2pc.sinks.table_columns import fit_rows, mismatch
from tracing_2pc.tracing.decorator.traced_sink import traced_sink

if TYPE_CHECKING:
    import pyarrow as pa

_TRIES: Final = 10
"""A commit that fails was overtaken: by itself in another process, or by a change of
the table's metadata. Appends of others make none fail."""

_HOW: Final = "commits by copies on s3:// or by hard links"

_TRANSACTION: Final = "tracing_2pc.transaction"
_PARTICIPANT: Final = "tracing_2pc.participant"
_PROOF: Final = "tracing_2pc.proof"
_DIGEST_BITS: Final = 40


@dataclasses.dataclass(eq=False)
class DeltaHandle(TableHandle):
    """A branch; its fields are what the decision log keeps."""

    table: str = ""  # its id
    partition_types: dict[str, str] = dataclasses.field(default_factory=dict)
    lengths: dict[str, int] = dataclasses.field(default_factory=dict)  # of texts
    # Of one whose files are not listed here, but beside them:
    stem: str = ""  # what their names begin with
    count: int = 0
    digest: str = ""  # of that list

    @property
    def paths(self) -> list[str]:
        """Where its files will be; from a receipt this may be anything.

        Raises:
            ParticipantRefusedError: more than a task can have made.
        """
        named = numbered(self, self.stem, self.count, MAX_FILES)
        return [*named, *super().paths]

    @property
    def store(self) -> Hashable:
        """What it was written to: another folder may be a copy of the table's."""
        return self.folder, self.table


@traced_sink
class DeltaSink(FolderSink[DeltaHandle]):
    """Append to a Delta table on S3, or in a folder that driver and executors share.

    A branch is durable in Parquet files aside before it votes. Commit links its files
    into the table's folder, where no reader looks, on S3 it has them copied there, and
    then lists those of all branches in one commit of the table: a reader sees all rows
    of a batch or none. That commit also notes the batch and the attempt (`txn`), so
    that a commit that is repeated after a kill at any step appends nothing twice. It is
    durable before it is acknowledged.

    Args:
        table: a table that exists: `s3://bucket/folder`, or a path or a `file:///` URL
            in a file system with hard links (POSIX), which is the same for the driver
            and all executors.
        name: the participant's. Two sinks of one job with one table need two names.
        evolve: with "add" a column that a batch has and the table has not is added,
            nullable, by a commit of the table of its own, before the tasks of the
            batch. It stays if the batch aborts or a process is killed.
        properties: of a store, beside what boto3 finds in the environment: AWS_REGION,
            AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and
            AWS_SESSION_TOKEN. A secret is a reference, `env:NAME` or `file:PATH`, which
            is read where it is used.

    Raises:
        ConfigurationError: another object store, a secret that is no reference, or a
            bad name.
    """

    handle_type = DeltaHandle
    _folder: TableFolder
    _kind = "table"

    def __init__(
        self,
        table: str | os.PathLike[str],
        name: str | None = None,
        *,
        evolve: Literal["add"] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(name or "delta")
        if is_object_store(address := os.fspath(table)):
            at = S3Folder(address, properties or {})
            self._folder = ObjectFolder(at, self.name)
        else:
            self._folder = self._shared(LocalFolder, table, _HOW)
            if properties:
                raise ConfigurationError("properties are of a table on S3 only")
        self._adds_columns = adds_columns(evolve)
        if not self._adds_columns:  # then nothing has to be learnt of Spark
            self.before_tasks = None  # type: ignore[assignment,method-assign]
        self._kept = set[TransactionId]()  # prepared, and never committed

    def check_job(self, application: str) -> None:
        """Open the table, and note which folder the driver sees.

        Raises:
            ConfigurationError: there is none, it uses what we cannot write, it is not
                ours to write, or its store lets one commit of it replace another.
        """
        raise_if_unsupported(self._folder.open_table())
        self._folder.check()
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
            table = self._folder.open_table()
            raise_if_unsupported(table)
            if not (fields := new_fields(table, schema)):
                break
            failed = add_fields(table, fields)
        else:
            raise ParticipantUnavailableError(
                f"no column could be added to {self._folder.path}: {failed}"
            )
        # Also what a process has added that was killed then.
        self._folder.flush_log(table.version())

    def begin(self, context: BranchContext) -> DeltaHandle:
        """Open a branch aside; a file of it is made with its first row.

        Raises:
            ConfigurationError: as `check_job`; or not the folder that the driver sees.
            ParticipantRefusedError: the batch is committed here already.
        """
        transaction = context.transaction_id
        table = self._folder.open_table()
        raise_if_unsupported(table)
        last, about = self._last(table, transaction), table.metadata()
        here = f"batch {last} of {transaction.application}"
        committed = here if last >= transaction.batch else None
        by = tuple(about.partition_columns)
        writer = partial(BranchFiles, self._folder)
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
        find = partial(rejected_rows, batch, handle.schema, handle.lengths)
        if handle.rejects(batch, find):
            return
        where, fault_of = self._folder.path, partial(too_long, lengths=handle.lengths)
        for rows in fit_rows(batch, handle.schema, where, fault_of):
            handle.writer.write(rows)

    def pre_commit(self, handle: DeltaHandle) -> None:
        """Make the files durable, aside.

        Raises:
            RejectedRowsError: with rows that have a null or a text which the table
                refuses, where the job has `rejects`.
        """
        handle.raise_if_rejected()
        super().pre_commit(handle)
        handle.files = [
            {
                "path": file["path"],
                "size": file["bytes"],
                "partition_values": handle.writer.values[file["path"]],
                "modification_time": self._folder.made(file["path"]),
                "stats": _stats(file["rows"]),
            }
            for file in handle.files
        ]
        failpoint("delta.before_list")
        if digest := self._folder.note(handle.files):
            stem, count = stem_of(handle.paths[0]), len(handle.files)
            handle.stem, handle.count, handle.digest = stem, count, digest
            handle.files = []

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
            table = self._folder.open_table()
            if self._is_committed(table, transaction, handles):
                break
            files = self._placed(table, transaction, handles)
            if files is None:
                continue
            self._folder.flush_log(table.version())  # of others, who do not flush it
            failpoint("delta.before_commit")
            try:
                failed = self._append(table, transaction, handles, files)
            except ParticipantUnavailableError:  # it may have been done
                if not self._is_committed(
                    self._folder.open_table(), transaction, handles
                ):
                    raise
        else:
            raise ParticipantUnavailableError(
                f"{transaction} could not be committed in {self._folder.path}: {failed}"
                + self._folder.torn()
            )
        failpoint("delta.after_commit")
        self._folder.flush_log(table.version())
        self._restore(transaction, handles)
        # A batch commits once (rule 18): no other attempt at it can be needed.
        self._folder.clean_late(
            transaction, lambda t: t.batch == transaction.batch or self._is_late(t)
        )

    def _has(self, transaction: TransactionId) -> bool:
        table = self._folder.open_table()
        proof = table.transaction_version(self._app(transaction) + "/attempt") or 0
        newest = self._last(table, transaction), proof >> _DIGEST_BITS
        return newest == (transaction.batch, transaction.attempt)

    def _store(self) -> Hashable:
        table = self._folder.open_table()
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
        for version in self._folder.open_table().history():
            transaction = version.get(_TRANSACTION, "")
            if transaction.startswith(batch) and version.get(_PARTICIPANT) == self.name:
                return True
        self._kept.add(prepared)
        return False

    def _proof(self, transaction: TransactionId, handles: Sequence[DeltaHandle]) -> int:
        """Return what tells this commit from all others: its attempt, and its files."""
        names = "\n".join(sorted(_paths(handles)))
        text = f"{self.name}\n{transaction}\n{names}"
        digest = hashlib.sha256(text.encode()).digest()
        return transaction.attempt << _DIGEST_BITS | int.from_bytes(digest[:5], "big")

    def _placed(
        self, table: Any, transaction: TransactionId, handles: Sequence[DeltaHandle]
    ) -> list[dict[str, Any]] | None:
        """Return what the commit lists, once it is where it lists it, and fits.

        None: it is committed meanwhile. What is prepared stays as well: no vacuum looks
        there while the commit is pending. Idempotent.
        """
        self._raise_if_elsewhere(handles)
        try:
            raise_if_unsupported(table)
        except ConfigurationError as error:
            raise ParticipantRefusedError(
                f"{transaction} cannot be listed: since its vote {error}, or take the "
                "change back, and deliver the commit again"
            ) from None
        self._folder.place(_paths(handles))
        listed: list[dict[str, Any]] = []
        for handle in handles:
            if (files := self._files(handle)) is None:
                gone = "the list of its files is gone, or is another"
                self._raise_fault(transaction, handles, handle.stem, gone)
                return None
            with ThreadPoolExecutor(AT_ONCE) as pool:
                faults = [*pool.map(partial(self._fault, table, handle), files)]
            for file, fault in zip(files, faults, strict=True):
                if fault:
                    self._raise_fault(transaction, handles, file["path"], fault)
                    return None  # and compacted, perhaps
            listed += files
        self._folder.flush_places()
        return listed

    def _files(self, handle: DeltaHandle) -> list[dict[str, Any]] | None:
        """Return what a commit lists of a branch; None if that was removed."""
        if not handle.digest:
            return handle.files
        try:
            files = self._folder.noted(handle.stem, handle.digest)
        except FileNotFoundError:
            return None
        return files if [file["path"] for file in files] == handle.paths else None

    def _raise_fault(
        self,
        transaction: TransactionId,
        handles: Sequence[DeltaHandle],
        path: str,
        fault: str,
    ) -> None:
        """Say why a file cannot be listed, unless it is committed meanwhile."""
        root = self._folder.path
        if self._is_committed(self._folder.open_table(), transaction, handles):
            return
        self._raise_if_elsewhere(handles)
        if path in self._folder.missing([path]) and self._folder.is_prepared(path):
            raise ParticipantUnavailableError(
                f"{path} of {transaction} was removed from {root} before it was "
                "listed, such as by a vacuum: it is placed again"
            )
        raise ParticipantRefusedError(
            f"{path} of {transaction} cannot be listed in {root}: {fault}"
        )

    def _restore(
        self, transaction: TransactionId, handles: Sequence[DeltaHandle]
    ) -> None:
        """Place again what is listed, and a vacuum took before it was listed."""
        if not (gone := self._folder.missing(_paths(handles))):
            return
        listed = {
            os.path.basename(uri) for uri in self._folder.open_table().file_uris()
        }
        gone = [path for path in gone if path in listed]  # else compacted since
        self._folder.place(gone)
        if lost := self._folder.missing(gone):
            raise ParticipantRefusedError(
                f"{lost[0]} of {transaction} is listed in {self._folder.path}, and "
                "gone: somebody has removed it"
            )
        self._folder.flush_places()

    def _fault(
        self, table: Any, handle: DeltaHandle, file: dict[str, Any]
    ) -> str | None:
        """Say why a file would break readers: a commit takes whatever it lists."""
        try:
            placed = self._folder.open_placed(file["path"])
        except FileNotFoundError:
            return "it is gone, and no commit lists it: somebody has removed it"
        with contextlib.closing(placed):
            return self._fault_in(placed, table, handle, file)

    def _fault_in(
        self, placed: Any, table: Any, handle: DeltaHandle, file: dict[str, Any]
    ) -> str | None:
        from pyarrow import parquet

        if (size := placed.size()) != file["size"]:
            return f"it has {size} bytes, and {file['size']} were prepared"
        prepared, by = parquet.ParquetFile(placed), partition_types(table)
        footer, values = prepared.metadata, file["partition_values"]
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
            batches = prepared.iter_batches(columns=names)
            faults = (too_long(rows, changed) for rows in batches)
            fault = fault or next(filter(None, faults), None)
        return fault

    def _append(
        self,
        table: Any,
        transaction: TransactionId,
        handles: Sequence[DeltaHandle],
        files: Sequence[Mapping[str, Any]],
    ) -> str:
        """Try to list the files; return why it failed. The table tells if it did.

        Raises:
            ParticipantUnavailableError: it is not known whether it was carried out.
        """
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
            for file in files
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
            return line_of(error)
        except OSError as error:
            raise ParticipantUnavailableError(
                f"{self._folder.path} may have been changed, or not: {line_of(error)}"
            ) from error
        return "it is not there after its commit"


def _stats(rows: int) -> str:
    return json.dumps({"numRecords": rows})


def _paths(handles: Sequence[DeltaHandle]) -> list[str]:
    return [path for handle in handles for path in handle.paths]
