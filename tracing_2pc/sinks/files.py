"""A folder of files as a participant: prepared aside, visible by a rename."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tracing_2pc.core.errors import (
    ConfigurationError,
    ParticipantRefusedError,
    ParticipantUnavailableError,
)
from tracing_2pc.core.failpoints import failpoint
from tracing_2pc.core.model import BranchContext, TransactionId
from tracing_2pc.sinks.branch_files import (
    ENCODERS,
    BranchFiles,
    exists,
    flush_folders,
    make_folders,
    touch,
)
from tracing_2pc.sinks.folder_sink import FolderHandle, FolderSink
from tracing_2pc.sinks.shared_folder import SharedFolder
from tracing_2pc.tracing.decorator.traced_sink import traced_sink

if TYPE_CHECKING:
    import pyarrow as pa


@dataclasses.dataclass(eq=False)
class FileHandle(FolderHandle):
    """A branch; the decision log keeps its fields."""

    reserved: bool = False  # it adds to the folder's layout


@traced_sink
class FileSink(FolderSink[FileHandle]):
    """Write to a folder that driver and executors share, in one transaction.

    A branch is durable in files aside before it votes. Commit renames its files into
    the folder, writes a manifest of the transaction, and removes its other prepared
    files; killed anywhere, it is repeated, and leaves each file there once. A reader
    of the folder never sees a file that is not whole, or of a batch that is not decided
    commit. The renames are not one step: a reader that must see all of a batch or
    nothing reads the files that the manifests list.

    Args:
        folder: a path, or a `file:///` URL, of a file system that can rename (POSIX):
            the same for the driver and all executors. It is made if it is not there.
        format: `parquet`, `json` (an object a line), or `csv` (with a line of names;
            Spark reads it with the options `header`, `multiLine`, and `escape` as a
            quote).
        partition_by: columns whose values become folders, `region=north`, as Spark's
            `partitionBy` names them.
        name: the participant's.

    Raises:
        ConfigurationError: an object store, an unknown format, or a bad name.
    """

    handle_type = FileHandle
    _folder: SharedFolder
    _kind, _in_folders = "folder", True

    def __init__(
        self,
        folder: str | os.PathLike[str],
        format: Literal["parquet", "json", "csv"] = "parquet",  # noqa: A002 - Spark's word
        partition_by: str | Sequence[str] | None = None,
        name: str | None = None,
    ) -> None:
        if format not in ENCODERS:
            raise ConfigurationError(f"format {format!r}: one of {', '.join(ENCODERS)}")
        super().__init__(name or "files")
        self._folder = self._shared(SharedFolder, folder, "commits by a rename")
        self._format = format
        columns = [partition_by] if isinstance(partition_by, str) else partition_by
        self._partition_by = tuple(columns or ())
        if hidden := [n for n in self._partition_by if n.startswith((".", "_"))]:
            raise ConfigurationError(
                f"partition_by names {hidden[0]!r}: readers pass over folders that "
                "begin so. Rename the column"
            )
        self._newest: int | None = None  # the last batch that was committed there

    @property
    def folder(self) -> Path:
        """Its path."""
        return self._folder.path

    def check_job(self, application: str) -> None:
        """Make the folder, and note its newest batch, in the driver at the job's start.

        Raises:
            ConfigurationError: it cannot be made or written.
        """
        super().check_job(application)
        self._newest = self._folder.newest(application)

    def begin(self, context: BranchContext) -> FileHandle:
        """Open a branch aside; a file of it is made with its first row.

        Raises:
            ConfigurationError: this is not the folder that the driver sees.
            ParticipantRefusedError: the batch, or a later one, is committed here
                already.
        """
        transaction = context.transaction_id
        committed = self._folder.committed(transaction)
        newest = -1 if self._newest is None else self._newest
        if committed is None and transaction.batch <= newest:
            committed = f"one of the batches up to {newest}"
        known, partition_by = self._folder.layout(self._format), self._partition_by
        writer = partial(BranchFiles, self._folder)
        return self._begin(
            context,
            committed,
            lambda name: writer(f"{name}.{self._format}", partition_by, known),
        )

    def invoke_batch(self, handle: FileHandle, batch: pa.RecordBatch) -> None:
        """Take the rows of an Arrow batch; see `BranchFiles.write`."""
        handle.writer.write(batch)

    def pre_commit(self, handle: FileHandle) -> None:
        """Make the files durable, aside, and the folders that they will be in.

        What they add to the folder's layout is reserved until the transaction's end, so
        that no commit that is decided can be at odds with another.

        Raises:
            ConfigurationError: another transaction has reserved a layout that does not
                fit.
        """
        super().pre_commit(handle)
        if layout := handle.writer.layout:
            transaction = TransactionId.parse(handle.transaction)
            self._folder.reserve_layout(transaction, handle.paths[0], layout)
            handle.reserved = True
        self._folder.raise_if_linked(handle.paths)
        for path in handle.paths:  # what cannot be made is no news to a commit
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)

    def commit(self, handle: FileHandle) -> None:
        """Make the files of one branch visible; `abort_transaction` does the rest."""
        transaction = TransactionId.parse(handle.transaction)
        self._check_paths(transaction, [handle])
        if not self._is_committed(transaction):
            self._show(transaction, [handle])

    def commit_transaction(
        self, transaction_id: str, handles: Sequence[FileHandle]
    ) -> None:
        """Make these branches visible, once, and remove the other prepared files.

        The manifest is the proof: with it, all was visible once, even if files were
        changed since. Files left by late tasks of earlier attempts are removed, too.

        Raises:
            ParticipantRefusedError: a file is gone, a receipt names one that its task
                cannot have made, a folder is a symbolic link, or the batch was
                committed by another attempt. Nothing was changed.
            ParticipantUnavailableError: this is not the folder that the tasks wrote to.
        """
        transaction = TransactionId.parse(transaction_id)
        files = [file for handle in handles for file in handle.files]
        self._check_paths(transaction, handles)
        if self._is_committed(transaction):
            self._folder.confirm_manifest(transaction, files)
        else:
            self._show(transaction, handles)
            if any(handle.reserved for handle in handles):
                self._folder.note_layout(transaction, self._format)
            failpoint("files.before_manifest")
            self._folder.write_manifest(transaction, files)
        failpoint("files.after_manifest")
        # A batch commits once (rule 18): no other attempt at it can be needed. An
        # earlier one without manifest was ended by a person, who may need it.
        self._folder.clean_late(
            transaction, lambda t: self._folder.committed(t) is not None
        )

    def _has(self, transaction: TransactionId) -> bool:
        return self._folder.committed(transaction) == str(transaction)

    # --- visible --------------------------------------------------------------------

    def _show(self, transaction: TransactionId, handles: Sequence[FileHandle]) -> None:
        """Move the files to their places. Idempotent: some may be there already."""
        self._raise_if_elsewhere(handles)
        paths = _paths(handles)
        self._folder.raise_if_linked(paths)
        for path in paths:
            self._raise_if_lost(transaction, path)
        folders = {(self.folder / path).parent for path in paths}
        make_folders(self.folder, folders)
        for path in paths:
            prepared = self._folder.aside(path)
            try:
                touch(prepared)
                prepared.rename(self.folder / path)
            except FileNotFoundError:
                if exists(prepared):
                    raise  # somebody has removed the empty folder
                self._raise_if_lost(transaction, path)
            failpoint("files.between_renames")
        flush_folders(self.folder, folders)

    def _raise_if_lost(self, transaction: TransactionId, path: str) -> None:
        """A file that is not aside was moved, or even committed and deleted since."""
        if exists(self._folder.aside(path)) or exists(self.folder / path):
            return
        if self._folder.read_id() is None:
            raise ParticipantUnavailableError(
                f"{self.folder} was there a moment ago, and is gone: mount it again"
            )
        if not self._is_committed(transaction):
            raise ParticipantRefusedError(
                f"{path} of {transaction} is neither prepared nor in {self.folder}, "
                "and no manifest says that it was committed: somebody has removed it"
            )

    def _is_committed(self, transaction: TransactionId) -> bool:
        committed = self._folder.committed(transaction)
        if committed not in (None, str(transaction)):
            raise ParticipantRefusedError(
                f"{transaction} is decided commit, but {committed} has committed its "
                f"batch in {self.folder}"
            )
        return committed is not None


def _paths(handles: Sequence[FileHandle]) -> list[str]:
    return [file["path"] for handle in handles for file in handle.files]
