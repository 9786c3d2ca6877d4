"""An Iceberg table as a participant: prepared aside, visible by one commit of it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
from collections.abc import Collection, Hashable, Mapping, Sequence
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
from tracing_2pc.sinks.folder_sink import FolderSink, TableHandle, numbered
from tracing_2pc.sinks.iceberg_files import MOST_FILES, TableFiles, TableFolder
from tracing_2pc.sinks.iceberg_table import (
    TableName,
    as_iceberg,
    column_of,
    columns_of,
    first_line,
    new_columns,
    raise_if_unsupported,
    raise_if_unwritable,
    rejected_rows,
    schema_fault,
    value_fault,
)
from tracing_2pc.sinks.table_columns import (
    fit_rows,
    missing_columns,
    with_missing,
)
from tracing_2pc.sinks.values import cast_batch
from tracing_2pc.tracing.decorator.traced_sink import traced_sink

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

_TRIES: Final = 20
"""A commit that fails was overtaken, and one of those who were in its way was not."""

_ATTEMPTS: Final = 100
"""Attempts at a batch before the one that commits it, whose tasks may be late."""

_MAIN: Final = "main"
_TRANSACTION: Final = "tpc.transaction"
_PARTICIPANT: Final = "tpc.participant"
_PROOF: Final = "tpc.proof"


@dataclasses.dataclass(eq=False)
class IcebergHandle(TableHandle):
    """A branch; its fields are what the decision log keeps."""

    table: str = ""  # its UUID
    root: str = ""  # where its data files are
    spec: int = 0
    schema_id: int = 0
    stem: str = ""  # what the names of its files begin with
    count: int = 0  # of files
    digest: str = ""  # of the manifest that has the rest

    @property
    def paths(self) -> list[str]:
        """The names of its files.

        Raises:
            ParticipantRefusedError: more than a task can have made.
        """
        return numbered(self, self.stem, self.count, MOST_FILES)

    @property
    def store(self) -> Hashable:
        """What it was written to."""
        return self.folder, self.table


@dataclasses.dataclass(frozen=True, slots=True)
class _Marker:
    """What the table says of the last commit of an application, in a property."""

    batch: int
    attempt: int
    proof: str
    table: str
    snapshot: int
    sequence: int


@traced_sink
class IcebergSink(FolderSink[IcebergHandle]):
    """Append to an Iceberg table, by any catalog that pyiceberg knows.

    A branch is durable in Parquet files that no metadata names before it votes. Commit
    looks at the table, and sends the catalog one request that holds for the table as it
    was seen: a reader sees all rows of a batch or none. The same request notes batch,
    attempt and files in a property of the table, so that a commit that is repeated
    after a kill at any step, or after an answer that was lost, appends nothing twice.

    Args:
        catalog: as pyiceberg's configuration calls it, in the driver and in tasks.
        table: with its namespace, as `shop.orders`. Only its branch `main` is written.
        name: the participant's. Two sinks of one job with one table need two names.
        evolve: with "add" a column that a batch has and the table has not is added,
            nullable, by a commit of the table of its own, before the tasks of the
            batch. It stays if the batch aborts or a process is killed.
        create: whether a table that is not there is made, before the tasks of the first
            batch: with the columns of its rows, nullable, and no partitions.
        properties: of the catalog, beside what is configured. A secret is a reference,
            `env:NAME` or `file:PATH`, which is read where it is used.

    Raises:
        ConfigurationError: a secret that is no reference, or a bad name.
    """

    handle_type = IcebergHandle
    _kind = "table"

    def __init__(
        self,
        catalog: str,
        table: str,
        name: str | None = None,
        *,
        evolve: Literal["add"] | None = None,
        create: bool = False,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(name or "iceberg")
        self._table = TableName(catalog, table, dict(properties or {}))
        self._adds_columns = adds_columns(evolve)
        self._creates = create
        if not (self._adds_columns or create):  # then nothing has to be learnt of Spark
            self.before_tasks = None  # type: ignore[assignment,method-assign]
        self._kept = set[TransactionId]()  # prepared, and never committed
        self._warned = set[int]()  # snapshots that were rolled back
        self._driver_table: str | None = None  # the UUID where the job has started
        self._flushed = set[str]()
        self._opened: tuple[int, Any] | None = None  # a process and its catalog
        self._seen: TableFolder | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._table.catalog!r}, {self._table.table!r})"

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what only this process has."""
        own = {name: set[Any]() for name in ("_kept", "_warned", "_flushed")}
        return {**self.__dict__, **own, "_opened": None, "_seen": None}

    # --- where the job starts -------------------------------------------------------

    def check_job(self, application: str) -> None:
        """Look at the table, and note which folder the driver sees.

        Raises:
            ConfigurationError: there is none, it uses what we cannot write, or what
                it has of this application was copied from another table.
        """
        if (table := self._find()) is None and self._creates:
            return
        self._check(table := self._there(table), application)
        self._driver_table = str(table.metadata.table_uuid)
        super().check_job(application)

    def check_store(self, handles: Sequence[IcebergHandle]) -> None:
        """Refuse another table than that of the job's last commit: at each start.

        One that was brought back as it was before that commit is warned of.

        Raises:
            ConfigurationError: it is another one.
        """
        super().check_store(handles)
        for of in sorted(
            {TransactionId.parse(handle.transaction) for handle in handles}
        ):
            marker = self._marker(table := self._open(), of.application)
            is_behind = marker is None or marker.batch < of.batch
            if is_behind and not self._snapshots(table, of):
                logger.warning(
                    "rolled back: table=%s transaction=%s participant=%s: the table "
                    "has nothing of it; its rows are with the other participants",
                    *(self._table, of, self.name),
                )

    def before_tasks(self, schema: pa.Schema) -> None:
        """Make the table, or the columns that it lacks; without either it is None.

        What is made is durable when this returns. Idempotent: of two jobs that make the
        same, the second finds it there, or tries again.

        Raises:
            ConfigurationError: the table cannot have such a column; nothing is made.
            ParticipantUnavailableError: not now.
        """
        failed = ""
        for _ in range(_TRIES):
            table = self._find()
            if table is None and self._creates and not self._driver_table:
                failed = self._create(schema)
                continue
            self._raise_if_replaced(table := self._there(table))
            raise_if_unsupported(self._table, table)
            raise_if_unwritable(self._table, table)
            adds = self._adds_columns
            if not (fields := new_columns(self._table, table, schema) if adds else []):
                self._flush(table)
                self._driver_table = str(table.metadata.table_uuid)
                self._driver_sees = self._driver_sees or self._folder.identify()
                return
            failed = self._add(table, fields)
        raise ParticipantUnavailableError(
            f"{self._table} could not be changed for the rows to come: {failed}"
        )

    def _create(self, schema: pa.Schema) -> str:
        """Try to make the table; return why it failed."""
        from pyiceberg.exceptions import TableAlreadyExistsError
        from pyiceberg.schema import Schema

        fields = missing_columns(str(self._table), (), schema)
        made = Schema(
            *(
                column_of(self._table, field).model_copy(update={"field_id": n})
                for n, field in enumerate(fields, 1)
            )
        )
        namespace = self._table.table.rpartition(".")[0]
        try:
            self._catalog.create_namespace_if_not_exists(namespace)
            self._catalog.create_table(self._table.table, made)
        except TableAlreadyExistsError as error:
            return first_line(error)
        return "it is not there after it was made"

    def _add(self, table: Any, fields: Sequence[Any]) -> str:
        """Try to add columns; return why it failed. The table tells if it did."""
        transaction = table.transaction()
        with transaction.update_schema() as update:
            for field in fields:
                update.add_column((field.name,), field.field_type)
        return self._send(table, transaction) or "they are not there after their commit"

    # --- a branch -------------------------------------------------------------------

    def begin(self, context: BranchContext) -> IcebergHandle:
        """Open a branch aside; a file of it is made with its first row.

        Raises:
            ConfigurationError: as `check_job`; or not the folder, or the table, that
                the driver sees.
            ParticipantRefusedError: the batch, or a later one, is committed here
                already, or the branch `main` is gone.
        """
        transaction = context.transaction_id
        self._raise_if_replaced(table := self._open())
        marker = self._check(table, transaction.application)
        committed = None
        if marker is not None:
            self._raise_if_headless(table, transaction, marker)
            if marker.batch >= transaction.batch:
                committed = f"batch {marker.batch} of {transaction.application}"
        folder = TableFolder(table, self.name)
        handle = self._begin(context, committed, lambda stem: TableFiles(folder, stem))
        handle.table, handle.root = str(table.metadata.table_uuid), folder.root
        handle.spec = table.spec().spec_id
        handle.schema_id, handle.schema = table.schema().schema_id, columns_of(table)
        handle.at_most = context.rejects_at_most
        return handle

    def invoke_batch(self, handle: IcebergHandle, batch: pa.RecordBatch) -> None:
        """Take the rows of an Arrow batch, in the table's types; see `TableFiles`.

        Raises:
            ConfigurationError: a column that the table does not have, of another type,
                or null or missing where the table requires it; or a date or time that
                no file can have bounds of.
            RejectedRowsError: as `pre_commit`, where there are too many.
        """
        if self._adds_columns:
            batch = batch.select(content.typed(batch.schema, handle.schema.names))
        batch = cast_batch(batch, as_iceberg(batch.schema))
        if handle.rejects(batch, partial(rejected_rows, batch, handle.schema)):
            return
        for rows in fit_rows(batch, handle.schema, self._table, value_fault):
            handle.writer.write(with_missing(rows, handle.schema))

    def pre_commit(self, handle: IcebergHandle) -> None:
        """Make the files durable, and what the commit needs of them.

        Raises:
            RejectedRowsError: with rows that have a null, or a date or time, which the
                table refuses, where the job has `rejects`.
        """
        handle.raise_if_rejected()
        super().pre_commit(handle)
        handle.digest, handle.count = handle.writer.digest, len(handle.files)
        handle.stem = handle.files[0]["path"].rsplit(".", 2)[0]
        handle.files = []  # their names follow from these, however many there are

    # --- the decision ---------------------------------------------------------------

    def commit(self, handle: IcebergHandle) -> None:
        """Commit a transaction of one branch: a second one of it is refused."""
        self.commit_transaction(handle.transaction, [handle])

    def commit_transaction(
        self, transaction_id: str, handles: Sequence[IcebergHandle]
    ) -> None:
        """Make these branches visible in one step, once, and remove what else there is.

        The table is the proof: its property has the newest commit of the application;
        older ones are in the summaries of its snapshots, for as long as it has these.

        Raises:
            ParticipantRefusedError: a file is gone, a receipt names one that its task
                cannot have made, the table was changed and they do not fit, it was
                rolled back to before this commit, it is a copy, or it does not prove
                that it was this attempt that committed the batch, or one before a later
                one. Nothing was changed.
            ParticipantUnavailableError: not now; or it is not known whether the catalog
                has carried it out. It may be repeated at any time.
        """
        transaction, failed = TransactionId.parse(transaction_id), ""
        self._check_paths(transaction, handles)
        for _ in range(_TRIES):
            if (table := self._find()) is None:
                raise ParticipantUnavailableError(
                    f"{transaction} was prepared for {self._table}, which is gone: "
                    "bring that table back, or `tracing-2pc resolve`"
                )
            self._seen = TableFolder(table, self.name)
            if self._is_committed(table, transaction, handles):
                break
            try:
                failed = self._append(table, transaction, handles)
            except (ParticipantUnavailableError, ParticipantRefusedError):
                # It was carried out, or by another process, which has cleaned up.
                if not self._is_committed(self._open(), transaction, handles):
                    raise
        else:
            raise ParticipantUnavailableError(
                f"{transaction} could not be committed in {self._table}: {failed}"
            )
        failpoint("iceberg.after_commit")
        self._flush(table)
        chosen = {path for handle in handles for path in handle.paths}
        earlier = self._earlier(table, transaction)
        self._folder.clean_late(transaction, chosen, earlier, self._kept_of)

    def _earlier(self, table: Any, transaction: TransactionId) -> list[TransactionId]:
        """Return attempts at a batch before the one that has committed it.

        A task of theirs may write until it is told to end, without a manifest.
        """
        numbers = range(max(1, transaction.attempt - _ATTEMPTS), transaction.attempt)
        attempts = [dataclasses.replace(transaction, attempt=n) for n in numbers]
        if not attempts:  # as a rule: no snapshot has to be looked at
            return []
        noted = [_noted_in(s) for s in self._snapshots(table, transaction)]
        listed = {about.get(_TRANSACTION) for about in noted}
        return [attempt for attempt in attempts if str(attempt) not in listed]

    def _has(self, transaction: TransactionId) -> bool:
        """Tell if this very attempt is committed here, also before a later batch."""
        if (table := self._find()) is None:
            return False
        marker = self._marker(table, transaction.application)
        if marker is not None and marker.batch == transaction.batch:
            return marker.attempt == transaction.attempt
        snapshots = self._snapshots(table, transaction)
        return str(transaction) in [_noted_in(s).get(_TRANSACTION) for s in snapshots]

    def _clean(self, transaction: TransactionId) -> None:
        """Remove what was prepared; not what may be committed.

        Files stay in their place when they are committed. Whether those of an attempt
        at a batch that is passed are, only a snapshot of that batch tells.
        """
        if (table := self._find()) is None:
            return
        marker = self._marker(table, transaction.application)
        is_passed = marker is not None and marker.batch > transaction.batch
        if is_passed and not self._snapshots(table, transaction):
            logger.warning(
                "files left: table=%s transaction=%s participant=%s: a later batch is "
                "committed, and no snapshot tells which attempt at this one was",
                *(self._table, transaction, self.name),
            )
            return
        TableFolder(table, self.name).clean(transaction)

    def _store(self) -> Hashable:
        table = self._open()
        return self._folder.read_id(), str(table.metadata.table_uuid)

    # --- the table ------------------------------------------------------------------

    @property
    def _catalog(self) -> Any:
        """Of this process: that of the one it was forked from is not to be used."""
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened, self._seen = (os.getpid(), self._table.open_catalog()), None
        return self._opened[1]

    def _find(self) -> Any | None:
        return self._table.find(self._catalog)

    def _there(self, table: Any | None) -> Any:
        if table is None:
            known = self._creates or self._driver_table
            raise ConfigurationError(
                f"{self._table} is gone, and the job has written to it: bring it back, "
                "or give the sink another name. Nothing was written"
                if known
                else f"{self._table} is no table: create it before, or give create=True"
            )
        return table

    def _raise_if_replaced(self, table: Any) -> None:
        """Refuse a table that is not the one that the job has started with."""
        if self._driver_table not in (None, str(table.metadata.table_uuid)):
            raise ConfigurationError(
                f"{self._table} is another table than the job has started with: it was "
                "dropped and made anew, or another catalog is configured here. Bring "
                "the first one back, or start the job again. Nothing was written"
            )

    def _open(self) -> Any:
        """Return the table as it is now."""
        table = self._there(self._find())
        self._seen = TableFolder(table, self.name)
        return table

    @property
    def _folder(self) -> TableFolder:  # type: ignore[override]
        """Where the files of the table are that was opened last."""
        if self._catalog and self._seen is None:
            self._open()
        assert self._seen is not None  # noqa: S101 - it raises
        return self._seen

    def _property(self, application: str) -> str:
        return f"tpc.{application}.{self.name}"

    def _marker(self, table: Any, application: str) -> _Marker | None:
        """Return what a table says of the application's last commit.

        Raises:
            ParticipantRefusedError: it says that of another table.
        """
        name = self._property(application)
        if (text := table.properties.get(name)) is None:
            return None
        try:
            marker = _Marker(**json.loads(text))
            numbers = marker.batch, marker.attempt, marker.snapshot, marker.sequence
            if any(type(number) is not int for number in numbers):
                raise TypeError
        except (TypeError, ValueError):
            raise ParticipantRefusedError(
                f"{self._table} has the property {name} = {text!r:.80}, which is none "
                "of ours: give the job another application name"
            ) from None
        if marker.table != str(table.metadata.table_uuid):
            raise ParticipantRefusedError(
                f"{self._table} is a copy of another table, with what that says of its "
                f"commits: remove the property {name}, or give the job another "
                "application name"
            )
        return marker

    def _check(self, table: Any, application: str) -> _Marker | None:
        """Refuse a table that we cannot write, or that is a copy; return its marker."""
        raise_if_unsupported(self._table, table)
        raise_if_unwritable(self._table, table)
        try:
            return self._marker(table, application)
        except ParticipantRefusedError as error:
            raise ConfigurationError(str(error)) from None

    def _raise_if_headless(
        self, table: Any, transaction: TransactionId, marker: _Marker
    ) -> None:
        if table.snapshot_by_name(_MAIN) is None:
            raise ParticipantRefusedError(
                f"{transaction}: {self._table} has no branch {_MAIN!r} any more, and "
                f"batch {marker.batch} was committed to it: put it back; for a table "
                "that begins anew give the job another application name",
                transaction_id=str(transaction),
            )

    def _is_committed(
        self, table: Any, transaction: TransactionId, handles: Sequence[IcebergHandle]
    ) -> bool:
        marker = self._marker(table, transaction.application)
        if marker is not None:
            self._raise_if_headless(table, transaction, marker)
            if marker.batch < transaction.batch:
                self._warn_if_rolled_back(table, transaction.application, marker)
                return False
        proof, snapshot, sequence = self._proof(transaction, handles), None, 0
        if marker is not None and marker.batch == transaction.batch:
            if (marker.attempt, marker.proof) == (transaction.attempt, proof):
                snapshot, sequence = marker.snapshot, marker.sequence
        elif found := self._snapshot_of(table, transaction, proof):
            snapshot, sequence = found.snapshot_id, found.sequence_number or 0
        if snapshot is None:
            if marker is None:
                return False
            raise ParticipantRefusedError(
                f"{transaction} is decided commit, but {self._table} has batch "
                f"{marker.batch} of {transaction.application}, and nothing proves that "
                "this attempt is in it: a job of the same application name with "
                "another log has written it, or its snapshots have expired"
            )
        if _is_rolled_back(table, snapshot, sequence):
            raise ParticipantRefusedError(
                f"{transaction} was committed in {self._table}, as snapshot "
                f"{snapshot}, and the table was rolled back to before it: bring that "
                "snapshot back, or end the transaction and write its rows in another"
            )
        return True

    def _warn_if_rolled_back(
        self, table: Any, application: str, marker: _Marker
    ) -> None:
        if marker.snapshot in self._warned or not _is_rolled_back(
            table, marker.snapshot, marker.sequence
        ):
            return
        self._warned.add(marker.snapshot)
        logger.warning(
            "rolled back: table=%s transaction=%s.%s.%s participant=%s snapshot=%s: "
            "its rows are with the other participants, and not in this table any more",
            *(self._table, application, marker.batch, marker.attempt, self.name),
            marker.snapshot,
        )

    def _snapshot_of(
        self, table: Any, transaction: TransactionId, proof: str
    ) -> Any | None:
        """Return what a commit that is repeated late has made, if it is there."""
        for snapshot in self._snapshots(table, transaction):
            if _noted_in(snapshot).get(_PROOF) == proof:
                return snapshot
        return None

    def _snapshots(self, table: Any, transaction: TransactionId) -> list[Any]:
        """Return the snapshots of this participant with a transaction's batch."""
        batch, found = f"{transaction.application}.{transaction.batch}.", []
        for snapshot in table.snapshots():
            noted = _noted_in(snapshot)
            is_batch = noted.get(_TRANSACTION, "").startswith(batch)
            if is_batch and noted.get(_PARTICIPANT) == self.name:
                found.append(snapshot)
        return found

    def _kept_of(self, prepared: TransactionId) -> Collection[str] | None:
        """Return the files that are committed of a batch, if the table proves it.

        Without the proof it may have been ended by a person, who may need all of them.
        """
        if prepared in self._kept:
            return None
        table = self._open()
        if not (snapshots := self._snapshots(table, prepared)):
            self._kept.add(prepared)
            return None
        return {
            entry.data_file.file_path.rpartition("/")[2]
            for snapshot in snapshots
            for manifest in snapshot.manifests(table.io)
            if manifest.added_snapshot_id == snapshot.snapshot_id
            for entry in manifest.fetch_manifest_entry(table.io)
        }

    def _proof(
        self, transaction: TransactionId, handles: Sequence[IcebergHandle]
    ) -> str:
        """Return what tells this commit from all others: its attempt, and its files."""
        names = sorted(path for handle in handles for path in handle.paths)
        text = "\n".join([self.name, str(transaction), *names])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    # --- one commit of it -----------------------------------------------------------

    def _append(
        self, table: Any, transaction: TransactionId, handles: Sequence[IcebergHandle]
    ) -> str:
        """Try to list the files; return why it failed. The table tells if it did."""
        files = self._look(table, transaction, handles)
        proof = self._proof(transaction, handles)
        summary = {
            _TRANSACTION: str(transaction),
            _PARTICIPANT: self.name,
            _PROOF: proof,
        }
        change = table.transaction()
        with change.update_snapshot(
            snapshot_properties=summary
        ).fast_append() as append:
            for file in files:
                append.append_data_file(file)
        marker = _Marker(
            *(transaction.batch, transaction.attempt, proof),
            str(table.metadata.table_uuid),
            append.snapshot_id,
            table.metadata.next_sequence_number(),
        )
        name = self._property(transaction.application)
        change.set_properties({name: json.dumps(dataclasses.asdict(marker))})
        self._flush(table, change.table_metadata.snapshot_by_id(append.snapshot_id))
        failpoint("iceberg.before_commit")
        return self._send(table, change) or "it is not there after its commit"

    def _send(self, table: Any, change: Any) -> str:
        """Send a change that holds for the table as it was seen; return why it failed.

        It is sent once: pyiceberg's own retry does not look who was in its way.

        Raises:
            ParticipantUnavailableError: it is not known whether it was carried out.
        """
        from pyiceberg.exceptions import CommitFailedException
        from pyiceberg.table.update import (
            AssertCurrentSchemaId,
            AssertDefaultSpecId,
            AssertTableUUID,
        )

        seen = table.metadata
        requirements = {
            type(requirement): requirement
            for requirement in (
                AssertTableUUID(uuid=seen.table_uuid),
                AssertCurrentSchemaId(current_schema_id=seen.current_schema_id),
                AssertDefaultSpecId(default_spec_id=seen.default_spec_id),
                *change._requirements,  # `main` at the snapshot that was seen
            )
        }
        try:
            self._catalog.commit_table(
                table, tuple(requirements.values()), change._updates
            )
        except CommitFailedException as error:
            return first_line(error)
        except Exception as error:
            raise ParticipantUnavailableError(
                f"{self._table} may have been changed, or not: {first_line(error)}"
            ) from error
        return ""

    def _look(
        self, table: Any, transaction: TransactionId, handles: Sequence[IcebergHandle]
    ) -> list[Any]:
        """Return what the commit lists, once each file was seen to be whole.

        Raises:
            ParticipantRefusedError: one is not, or the table was changed so that they
                do not fit.
            ParticipantUnavailableError: this is not the folder that the tasks wrote to.
        """
        try:
            raise_if_unsupported(self._table, table)
            for handle in handles:
                if fault := _change(table, handle):
                    raise ConfigurationError(fault)
        except ConfigurationError as error:
            raise ParticipantRefusedError(
                f"{transaction} cannot be listed: since its vote {error}, or take the "
                "change back, and deliver the commit again"
            ) from None
        self._raise_if_elsewhere(handles)
        return [
            file
            for handle in handles
            for file in self._files(table, transaction, handle)
        ]

    def _files(
        self, table: Any, transaction: TransactionId, handle: IcebergHandle
    ) -> list[Any]:
        folder, fault = TableFolder(table, self.name), None
        files: list[Any] = []
        try:
            files = folder.data_files(handle.stem, handle.digest, handle.spec)
        except FileNotFoundError:
            fault = f"{folder.manifest(handle.stem)} is gone"
        locations = [folder.location(path) for path in handle.paths]
        if not fault and [file.file_path for file in files] != locations:
            fault = f"{folder.manifest(handle.stem)} names other files"
        for file, size in zip(files, folder.sizes(locations), strict=False):
            if size != file.file_size_in_bytes:
                has = "is gone" if size is None else f"has {size} bytes"
                fault = f"{file.file_path} {has}"
        if fault is None:
            return files
        raise ParticipantRefusedError(
            f"{transaction} cannot be listed in {self._table}: {fault}, and the "
            "table does not have it: somebody has removed or changed it"
        )

    def _flush(self, table: Any, snapshot: Any | None = None) -> None:
        """Make durable, in a file system, what the table is read by: nobody else does.

        Before a commit its own manifests, after it also those of others, which it is
        not read without.
        """
        if not (folder := TableFolder(table, self.name)).is_local:
            return
        of = snapshot or table.current_snapshot()
        paths = [] if snapshot else [table.metadata_location]
        if of is not None:
            paths += [of.manifest_list]
            paths += [manifest.manifest_path for manifest in of.manifests(table.io)]
        folder.flush(path for path in paths if path not in self._flushed)
        self._flushed = set(paths)


def _noted_in(snapshot: Any) -> Mapping[str, str]:
    """Return what a snapshot's summary says beside its counts."""
    return snapshot.summary.additional_properties if snapshot.summary else {}


def _change(table: Any, handle: IcebergHandle) -> str | None:
    """Say which change of a table keeps the files of a branch from being listed."""
    if handle.table != str(table.metadata.table_uuid):
        return "it is another table"
    if handle.spec != table.spec().spec_id:
        return "it is partitioned in another way"
    if handle.root != TableFolder(table, "").root:
        return f"its data is not in {handle.root} any more"
    return schema_fault(table, handle.schema_id)


def _is_rolled_back(table: Any, snapshot: int, sequence: int) -> bool:
    """Whether a snapshot that was committed to `main` is none of its past any more.

    The past ends where snapshots have expired, and one that is older than its end may
    be part of it. A table of format 1 has no sequence numbers, but times.
    """
    from pyiceberg.table.snapshots import ancestors_of

    past = list(ancestors_of(table.snapshot_by_name(_MAIN), table.metadata))
    if not past or snapshot in [known.snapshot_id for known in past]:
        return not past
    last, there = past[-1], table.snapshot_by_id(snapshot)
    if there is not None and last.parent_snapshot_id is None:
        return True  # `main` has begun anew, as by CREATE OR REPLACE
    if sequence:
        return bool((last.sequence_number or 0) < sequence)
    return there is not None and bool(last.timestamp_ms < there.timestamp_ms)
