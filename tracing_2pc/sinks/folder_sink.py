"""What sinks of files share: branches prepared aside, in a folder or a table."""

from __future__ import annotations

import dataclasses
import os
import re
import urllib.parse
import uuid
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, TypeVar

from tracing_2pc.core.errors import (
    ConfigurationError,
    ParticipantRefusedError,
    ParticipantUnavailableError,
    RejectedRowsError,
)
from tracing_2pc.core.failpoints import failpoint
from tracing_2pc.core.model import (
    BranchContext,
    BranchId,
    RejectedRow,
    TransactionId,
)
from tracing_2pc.core.settings import check_name
from tracing_2pc.sinks.branch_files import is_folder_of_value
from tracing_2pc.sinks.shared_folder import PREPARED, SharedFolder
from tracing_2pc.sinks.table_columns import mismatch

if TYPE_CHECKING:
    import pyarrow as pa

_SHOWN: Final = 200
"""Characters of a path that a line repeats."""

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")

_Folder = TypeVar("_Folder", bound=SharedFolder)


@dataclasses.dataclass(eq=False)
class FolderHandle:
    """A branch in a folder; its fields are what the decision log keeps."""

    transaction: str
    folder: str  # its id
    files: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    rows: int = 0
    bytes: int = 0

    def __post_init__(self) -> None:
        self.writer: Any = None  # `BranchFiles`, in its task
        self.receipt_branch: BranchId | None = None

    @property
    def paths(self) -> list[str]:
        """Where its files will be; from a receipt this may be anything."""
        return [file["path"] for file in self.files]

    @property
    def store(self) -> Hashable:
        """What it was written to."""
        return self.folder


class TableHandle(FolderHandle):
    """A branch of a table, which may refuse rows by their values."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.schema: Any = None  # the table's
        self.at_most: int | None = None  # rows that may be rejected; None: abort
        self.given = 0
        self.rejected: list[RejectedRow] = []

    def rejects(
        self, batch: pa.RecordBatch, find: Callable[[int], list[RejectedRow]]
    ) -> bool:
        """Note the rows of a batch that the table refuses; return if there are any yet.

        Then the branch is written again without them. Nothing is noted of a batch whose
        columns do not fit: that is no row's fault. `find` is given the number of the
        batch's first row.

        Raises:
            RejectedRowsError: there are too many.
        """
        empty = batch.slice(0, 0)  # whose columns are looked at, and no value
        if self.at_most is None or mismatch(batch.schema, self.schema, empty):
            return False
        self.rejected += find(self.given)
        self.given += batch.num_rows
        if len(self.rejected) > self.at_most:
            raise RejectedRowsError(self.rejected)
        return bool(self.rejected)

    def raise_if_rejected(self) -> None:
        """Raise `RejectedRowsError` with the rows that were noted, if there are any."""
        if self.rejected:
            raise RejectedRowsError(self.rejected)


_Handle = TypeVar("_Handle", bound=FolderHandle)


def numbered(handle: FolderHandle, stem: str, count: object, most: int) -> list[str]:
    """Return the names of a branch's files, of which its receipt has the number only.

    Raises:
        ParticipantRefusedError: that is more than a task can have made.
    """
    if not isinstance(count, int) or not 0 <= count <= most:
        raise ParticipantRefusedError(
            f"{handle.transaction}: a receipt names {count!r:.20} files, which its "
            "task cannot have made: nothing was changed. Find out which executor has "
            "sent it"
        )
    return [f"{stem}.{n}.parquet" for n in range(count)]


class BranchFolder(Protocol):
    """Where a sink has what is prepared."""

    @property
    def path(self) -> object:
        """Where it is, as a line names it."""

    def identify(self) -> str:
        """Return its id, made by whoever is the first; durable then."""

    def read_id(self) -> str | None:
        """Return its id; None if it has none: it is new, or it is not mounted."""

    def drop(self, paths: Sequence[str]) -> None:
        """Remove what a branch has prepared of its files."""

    def clean(self, transaction: TransactionId) -> None:
        """Remove what is aside of a transaction."""


class BranchWriter(Protocol):
    """What writes the files of one branch."""

    def write(self, batch: Any) -> None:
        """Take the rows of an Arrow batch."""

    def close(self) -> list[dict[str, Any]]:
        """Make all files durable; return the path, rows and bytes of each."""

    def drop(self) -> None:
        """Remove them."""


class FolderSink(Generic[_Handle]):
    """A sink whose files are aside, where no reader looks, until they are committed.

    Args:
        name: the participant's.

    Raises:
        ConfigurationError: a bad name.
    """

    handle_type: type[_Handle]
    driver_path = True
    _folder: BranchFolder
    _kind: ClassVar[str]  # of its store, as a line has it
    _in_folders: ClassVar[bool] = False  # files are in folders of partition values

    def __init__(self, name: str) -> None:
        try:
            self.name = check_name(name)
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
        self._driver_sees: str | None = None  # the id of a folder

    def _shared(
        self, kind: type[_Folder], folder: str | os.PathLike[str], how: str
    ) -> _Folder:
        """Return a folder of a file system; `how` it commits no object store can.

        Raises:
            ConfigurationError: it is no path, or `file:///` URL, of a file system.
        """
        path = _path_of(os.fspath(folder), type(self).__name__, how)
        return kind(path, self.name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._folder.path)!r})"

    def check_job(self, application: str) -> None:
        """Make the folder, and note which one the driver sees: where the job starts.

        Raises:
            ConfigurationError: it cannot be made or written.
        """
        try:
            self._driver_sees = self._folder.identify()
        except OSError as error:
            raise ConfigurationError(
                f"{application} cannot write to {self._folder.path}: {error}"
            ) from None

    def check_store(self, handles: Sequence[_Handle]) -> None:
        """Refuse another store than that of the job's last commit: at each start.

        Raises:
            ConfigurationError: it is another one, such as a mount point without mount.
        """
        if {handle.store for handle in handles} - {self._store()}:
            raise ConfigurationError(
                f"{self._folder.path} is not the {self._kind} that the last batch was "
                "written to: is it mounted? If you have moved it, move _tpc/folder-id "
                f"with it; for a new {self._kind} give the sink another name. Nothing "
                "was written"
            )

    def pre_commit(self, handle: _Handle) -> None:
        """Make the files durable, aside."""
        handle.files = handle.writer.close()
        handle.rows = sum(file["rows"] for file in handle.files)
        handle.bytes = sum(file["bytes"] for file in handle.files)

    def abort(self, handle: _Handle) -> None:
        """Remove the files of one branch."""
        if handle.writer is not None:
            handle.writer.drop()
        self._check_paths(TransactionId.parse(handle.transaction), [handle])
        self._folder.drop(handle.paths)

    def commit_transaction(
        self, transaction_id: str, handles: Sequence[_Handle]
    ) -> None:
        """Make these branches visible, once, and remove what else was prepared."""
        raise NotImplementedError

    def abort_transaction(self, transaction_id: str, keep: Sequence[_Handle]) -> None:
        """Remove what the transaction prepared, but for the branches to keep.

        Raises:
            ParticipantRefusedError: it is committed here.
        """
        if keep:
            self.commit_transaction(transaction_id, keep)
            return
        failpoint("files.before_abort")
        transaction = TransactionId.parse(transaction_id)
        if self._has(transaction):
            raise ParticipantRefusedError(
                f"{transaction} is decided abort, and is committed in "
                f"{self._folder.path}: by another log of the same application name, or "
                "an earlier state of this one. Give the job another application name"
            )
        # Not a newer attempt: it may be writing while this comes late.
        self._clean(transaction)

    def _clean(self, transaction: TransactionId) -> None:
        """Remove what is aside of a transaction that is decided abort."""
        self._folder.clean(transaction)

    def _store(self) -> Hashable:
        """Return what is written to now, as `FolderHandle.store`."""
        return self._folder.read_id()

    def _has(self, transaction: TransactionId) -> bool:
        """Tell if the newest commit of its batch is of this very attempt."""
        raise NotImplementedError

    def _begin(
        self,
        context: BranchContext,
        committed: str | None,
        writer: Callable[[str], BranchWriter],
    ) -> _Handle:
        """Open a branch aside; a file of it is made with its first row.

        `committed`: what proves that the batch is here already, if something does.
        `writer`: is given what the names of the branch's files begin with.

        Raises:
            ConfigurationError: this is not the folder that the driver sees.
            ParticipantRefusedError: the batch, or a later one, is committed here.
        """
        transaction, path = context.transaction_id, self._folder.path
        seen = self._driver_sees
        here = self._folder.read_id() if seen else self._folder.identify()
        if seen not in (None, here):
            raise ConfigurationError(
                f"{path} is another folder here than for the driver: "
                f"{type(self).__name__} needs one that all executors share with the "
                "driver, such as a mounted network file system. Nothing was written"
            )
        if committed:
            raise ParticipantRefusedError(
                f"{transaction}: batch {transaction.batch} is already committed in "
                f"{path}, as {committed}. If no late task says this, the job's log and "
                "checkpoint are not those that wrote here: give the job another "
                "application name",
                transaction_id=str(transaction),
            )
        name = f"{transaction}.{context.branch}.{uuid.uuid4().hex[:12]}"
        handle = self.handle_type(str(transaction), str(here))
        handle.writer = writer(name)
        return handle

    def _check_paths(
        self, transaction: TransactionId, handles: Sequence[_Handle]
    ) -> None:
        """See that tasks make such paths in a transaction, each branch its own.

        Who writes a receipt must not name what belongs to another, here or elsewhere.

        Raises:
            ParticipantRefusedError: a path is none that a task makes.
        """
        earlier, names = set[str](), set[str]()
        for handle in handles:
            receipt = handle.receipt_branch
            branches = set[str]() if receipt is None else {str(receipt)}
            for path in map(str, handle.paths):
                name = path.rpartition("/")[2]
                branch = self._branch_of(transaction, path)
                branches.add(branch)
                is_of_one_branch = len(branches) == 1 and branch not in earlier
                if not branch or not is_of_one_branch or name in names:
                    raise ParticipantRefusedError(
                        f"{transaction}: a receipt names {path[:_SHOWN]!r}, which its "
                        f"task cannot have made in {self._folder.path}: nothing was "
                        "changed. Find out which executor has sent it"
                    )
                names.add(name)
            earlier |= branches

    def _branch_of(self, transaction: TransactionId, path: str) -> str:
        """Return which branch of a transaction makes such a path; "" if none does."""
        *folders, name = path.split("/")
        made = PREPARED.fullmatch(name)
        if made is None or made["transaction"] != str(transaction):
            return ""
        is_place = not folders or self._in_folders
        are_values = all(map(is_folder_of_value, folders))
        return made["branch"] if is_place and are_values else ""

    def _raise_if_elsewhere(self, handles: Sequence[_Handle]) -> None:
        """See, where a transaction is committed, that its tasks wrote here.

        If none has, it is the driver's folder that counts; and if the driver has not
        looked either, the folder is made.

        Raises:
            ParticipantUnavailableError: this is another one.
        """
        wrote: set[str | None] = {handle.folder for handle in handles}
        expected = wrote or {self._driver_sees}
        if expected == {None}:
            self._folder.identify()
        elif expected != {self._folder.read_id()}:
            raise ParticipantUnavailableError(
                f"{self._folder.path} is not the folder that the tasks wrote to: mount "
                "or share that one here. Its files are still there"
            )


def _path_of(folder: str, sink: str, how: str) -> Path:
    """Return the absolute path: an executor has another working directory."""
    path = folder
    if _URL.match(folder):
        url = urllib.parse.urlsplit(folder)
        if url.scheme.lower() != "file" or url.netloc not in ("", "localhost"):
            shown = url._replace(netloc=url.netloc.rpartition("@")[2]).geturl()
            raise ConfigurationError(
                f"{sink}({shown!r}): it {how}, which {url.scheme}:/ "
                "does not have. Give a folder of a file system that driver and "
                "executors mount (/mnt/… or file:///…); for an object store, write to "
                "a participant of its own, such as a table with TaggedRows"
            )
        path = urllib.parse.unquote(url.path)
    if not path:
        raise ConfigurationError(f"{sink} needs a folder")
    return Path(os.path.abspath(path))
