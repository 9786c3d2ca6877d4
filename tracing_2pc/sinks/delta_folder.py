"""Where a Delta table is, and what is prepared for it: a folder, or one of a bucket.

In a bucket there are no links: what is prepared is copied, by the server.

    _tpc/delta.orders/orders.7.1.0.42.<token>.0.parquet   prepared, or left over
    _tpc/delta.orders/orders.7.1.0.42.<token>.json        all that its commit lists
    orders.7.1.0.42.<token>.0.parquet                     listed, or about to be

No vacuum looks into folders whose names begin with an underscore.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, Final, Protocol

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.failpoints import failpoint
from tracing_2pc.core.model import TransactionId
from tracing_2pc.sinks.branch_files import Aside, exists, flush_folders, touch
from tracing_2pc.sinks.delta_table import open_table, torn_in
from tracing_2pc.sinks.folder_sink import BranchFolder
from tracing_2pc.sinks.object_store import (
    AT_ONCE,
    S3Folder,
    names_in,
    remove,
    sizes_of,
)
from tracing_2pc.sinks.shared_folder import (
    PREPARED,
    AsideFolder,
    SharedFolder,
    stem_of,
)

_LARGEST: Final = 5 << 30
"""Bytes of an object that S3 copies in one request."""


class TableFolder(BranchFolder, Aside, Protocol):
    """The places of one participant in a table's folder."""

    def check(self) -> None:
        """See, where a job starts, that the store keeps what a commit relies on."""

    def open_table(self) -> Any:
        """Open the table; see `delta_table.open_table`."""

    def note(self, files: Sequence[Mapping[str, Any]]) -> str:
        """Keep what a commit lists of a branch; return its digest.

        Empty: nothing is kept, and the log must have it.
        """

    def noted(self, stem: str, digest: str) -> list[dict[str, Any]]:
        """Return what was kept of a branch.

        Raises:
            FileNotFoundError: it is gone, or is another one.
        """

    def made(self, path: str) -> int:
        """Return when a prepared file was written, in milliseconds."""

    def is_prepared(self, path: str) -> bool:
        """Whether a file is where it is until the end of its commit."""

    def place(self, paths: Iterable[str]) -> None:
        """Bring files to where a commit lists them. Idempotent.

        One that is not prepared is passed over. All are as young as that: a vacuum
        takes what is old and not listed.
        """

    def missing(self, paths: Sequence[str]) -> list[str]:
        """Return those of some files that are not where a commit lists them."""

    def open_placed(self, path: str) -> Any:
        """Open a file for reading where a commit lists it.

        Raises:
            FileNotFoundError: it is not there.
        """

    def flush_places(self) -> None:
        """Make the names durable of what was placed."""

    def flush_log(self, version: int) -> None:
        """Make durable what the table's log has, up to a version: deltalake does not.

        Before a commit, too: it is not read without those below it.
        """

    def torn(self) -> str:
        """Say, behind an error, what of the table's log is not whole."""

    def clean_late(
        self, committed: TransactionId, is_over: Callable[[TransactionId], bool]
    ) -> None:
        """Remove what is prepared of batches that are over; see `AsideFolder`."""


class LocalFolder(SharedFolder):
    """A table's folder in a file system with hard links."""

    def __init__(self, path: Path, name: str) -> None:
        super().__init__(path, name)
        self._flushed = -1  # up to which version of the table

    def check(self) -> None:
        """A file system is one, or `identify` fails."""

    def open_table(self) -> Any:
        """Open the table; see `delta_table.open_table`."""
        return open_table(self.path)

    def note(self, files: Sequence[Mapping[str, Any]]) -> str:
        """Keep nothing."""
        return ""

    def noted(self, stem: str, digest: str) -> list[dict[str, Any]]:
        """Return nothing: nothing is kept."""
        raise FileNotFoundError(stem, digest)

    def made(self, path: str) -> int:
        """Return when a prepared file was written, in milliseconds."""
        return self.aside(path).stat().st_mtime_ns // 1_000_000

    def is_prepared(self, path: str) -> bool:
        """Whether a file is aside."""
        return exists(self.aside(path))

    def place(self, paths: Iterable[str]) -> None:
        """Link files to where a commit lists them. Idempotent."""
        for path in paths:
            prepared = self.aside(path)
            # Not aside: another process has committed it, or the caller's check fails.
            with contextlib.suppress(FileExistsError, FileNotFoundError):
                touch(prepared)
                os.link(prepared, self.path / path)
            failpoint("delta.between_places")

    def missing(self, paths: Sequence[str]) -> list[str]:
        """Return those of some files that are not where a commit lists them."""
        return [path for path in paths if not exists(self.path / path)]

    def open_placed(self, path: str) -> Any:
        """Open a file for reading where a commit lists it."""
        import pyarrow as pa

        return pa.OSFile(str(self.path / path))

    def flush_places(self) -> None:
        """Make the names durable of what was linked."""
        flush_folders(self.path, [self.path])

    def flush_log(self, version: int) -> None:
        """Make durable what the table's log has, up to a version."""
        if version <= self._flushed:
            return
        log = self.path / "_delta_log"
        for path in log.iterdir():
            if path.name > f"{self._flushed:020}.json":
                with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                    os.fsync(file.fileno())
        flush_folders(log, [log])
        self._flushed = version

    def torn(self) -> str:
        """Say, behind an error, what of the table's log is not whole."""
        return torn_in(self.path)


class ObjectFolder(AsideFolder):
    """A table's folder in a bucket: what is written there is durable at once.

    Args:
        at: the folder.
        name: the participant's.
    """

    def __init__(self, at: S3Folder, name: str) -> None:
        self.path = str(at)
        self._at = at
        self._name = name

    def check(self) -> None:
        """See that two processes cannot write the same version of the table."""
        self._at.raise_if_careless("_tpc")

    def open_table(self) -> Any:
        """Open the table; see `delta_table.open_table`."""
        return open_table(self.path, self._at.options())

    def identify(self) -> str:
        """Return what is no id: what a bucket is called is the same everywhere."""
        return "object store"

    def read_id(self) -> str | None:
        """Return the same."""
        return "object store"

    def create(self, path: str) -> _Object:
        """Create a file aside, by its path once it is committed."""
        return _Object(self._at.files, self._aside(path))

    def flush(self, paths: Collection[str]) -> None:
        """Nothing is left to do: an object is there when it is closed."""

    def note(self, files: Sequence[Mapping[str, Any]]) -> str:
        """Keep what a commit lists of a branch, beside its files."""
        text = json.dumps(files).encode()
        with self._at.files.open_output_stream(self._list(files[0]["path"])) as file:
            file.write(text)
        return hashlib.sha256(text).hexdigest()

    def noted(self, stem: str, digest: str) -> list[dict[str, Any]]:
        """Return what was kept of a branch."""
        where = self._list(f"{stem}.0.parquet")
        with self._at.files.open_input_stream(where) as file:
            text = file.read()
        if hashlib.sha256(text).hexdigest() != digest:
            raise FileNotFoundError(where)
        return list(json.loads(text))

    def made(self, path: str) -> int:
        """Return when a prepared file was written, in milliseconds."""
        info = self._at.files.get_file_info(self._aside(path))
        if not info.is_file:
            raise FileNotFoundError(f"{self.path}/{self._aside(path)}")
        return int(info.mtime_ns // 1_000_000)

    def is_prepared(self, path: str) -> bool:
        """Whether a file is aside."""
        return sizes_of(self._at.files, [self._aside(path)]) != [None]

    def place(self, paths: Iterable[str]) -> None:
        """Let the server copy files to where a commit lists them. Idempotent."""
        files = self._at.files

        def copy(path: str) -> None:
            try:
                files.copy_file(self._aside(path), path)
            except OSError:
                if self.is_prepared(path):
                    raise
                # Another process has committed it, or the caller's check fails.
            failpoint("delta.between_places")

        with ThreadPoolExecutor(AT_ONCE) as pool:
            for _ in pool.map(copy, paths):
                pass

    def missing(self, paths: Sequence[str]) -> list[str]:
        """Return those of some files that are not where a commit lists them."""
        sizes = sizes_of(self._at.files, paths)
        return [path for path, size in zip(paths, sizes, strict=True) if size is None]

    def open_placed(self, path: str) -> Any:
        """Open a file for reading where a commit lists it."""
        return self._at.files.open_input_file(path)

    def flush_places(self) -> None:
        """Nothing is left to do."""

    def flush_log(self, version: int) -> None:
        """Nothing is left to do."""

    def torn(self) -> str:
        """Nothing is: an object is there whole, or not at all."""
        return ""

    def drop(self, paths: Sequence[str]) -> None:
        """Remove what a branch has prepared of its files, and the list of them."""
        lists = {self._list(path) for path in paths}
        self._remove([*map(self._aside, paths), *lists])

    def _left(self, application: str) -> dict[TransactionId, list[str]]:
        left = dict[TransactionId, list[str]]()
        folder = self._aside(f"{application}.x").rpartition("/")[0]
        for name in names_in(self._at.files, folder):
            stem, _, kind = name.rpartition(".")
            as_file = f"{stem}.0.parquet" if kind == "json" else name
            if made := PREPARED.fullmatch(as_file):
                with contextlib.suppress(ValueError):  # no id: it is not ours
                    of = TransactionId.parse(made["transaction"])
                    left.setdefault(of, []).append(f"{folder}/{name}")
        return left

    def _remove(self, files: Iterable[str]) -> None:
        remove(self._at.files, files)

    def _aside(self, path: str) -> str:
        """Return where a file is until it is committed, by its path then."""
        return f"_tpc/{self._name}.{path.partition('.')[0]}/{path}"

    def _list(self, path: str) -> str:
        """Return where the list is of a branch that has this file."""
        return self._aside(f"{stem_of(path)}.json")


class _Object:
    """An object that is being written; it is not there before it is closed."""

    def __init__(self, files: Any, path: str) -> None:
        self._files = files
        self._path = path
        self.file: IO[bytes] = files.open_output_stream(path)

    def close(self) -> int:
        """Make it durable; return its length.

        Raises:
            ConfigurationError: S3 cannot copy it: its commit could never be done.
        """
        size = self.file.tell()
        self.file.close()
        if size > _LARGEST:
            raise ConfigurationError(
                f"{self._path} would have {size} bytes, and S3 copies {_LARGEST} at "
                "most: repartition the DataFrame into smaller parts"
            )
        return size

    def drop(self) -> None:
        """Close it, whatever it holds, and remove it."""
        with contextlib.suppress(OSError):
            self.file.close()
        remove(self._files, [self._path])
