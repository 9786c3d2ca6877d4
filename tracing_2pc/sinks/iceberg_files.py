"""The files of an Iceberg table that its metadata does not name yet.

    data/.tpc/<table>/iceberg.orders/orders.7.1.0.42.<token>.avro      a prepared
        branch: a manifest of its files; removed when the transaction ends
    data/_tpc/<table>/iceberg.orders.7.1/orders.7.1.0.42.<token>.0.parquet      one of
        them: it stays there when it is committed
    data/_tpc/folder-id      in a file system: is this the same folder?

Spark's `remove_orphan_files` passes over names that begin with a dot or an underscore.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import logging
import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracing_2pc.core.errors import ConfigurationError, ParticipantRefusedError
from tracing_2pc.core.failpoints import failpoint
from tracing_2pc.core.model import TransactionId
from tracing_2pc.sinks.branch_files import IN_MEMORY, MAX_FILES, flush_folders
from tracing_2pc.sinks.iceberg_table import (
    arrow_schema,
    data_path,
    first_line,
    target_size,
)
from tracing_2pc.sinks.object_store import names_in, remove, sizes_of
from tracing_2pc.sinks.shared_folder import PREPARED, SharedFolder
from tracing_2pc.sinks.values import as_declared

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

MOST_FILES: Final = 20_000
"""Files that one branch may have: a commit has what manifests say of all of them."""


_DENIED: Final = re.compile(r"access.?denied|forbidden|permission", re.IGNORECASE)
"""What stores say to who may not remove an object."""


class TableFolder:
    """The places of one participant among the data files of an Iceberg table."""

    def __init__(self, table: Any, name: str) -> None:
        from pyiceberg.io.pyarrow import PyArrowFileIO

        self.table = table
        self.root = data_path(table)
        self._name = name
        # Tables may share a place for their data, at one time or one after the other.
        self._own = str(table.metadata.table_uuid).replace("-", "")[:12]
        scheme, _, path = PyArrowFileIO.parse_location(self.root)
        self._local = SharedFolder(Path(path), name) if scheme == "file" else None

    @property
    def path(self) -> str:
        """The table's name."""
        return ".".join((self.table.catalog.name, *self.table.name()))

    @property
    def is_local(self) -> bool:
        """Whether it is in a file system, where nothing is durable by itself."""
        return self._local is not None

    def location(self, path: str) -> str:
        """Return where a data file is: its name begins with its transaction."""
        transaction = ".".join(path.split(".")[:3])
        return f"{self.root}/_tpc/{self._own}/{self._name}.{transaction}/{path}"

    def manifest(self, stem: str) -> str:
        """Return where the manifest of a branch is; its name begins as its files'."""
        application = stem.partition(".")[0]
        return f"{self.root}/.tpc/{self._own}/{self._name}.{application}/{stem}.avro"

    @functools.cached_property
    def columns(self) -> tuple[Any, pa.Schema]:
        """The columns as files name them, in Iceberg's and in Arrow's types."""
        from pyiceberg.schema import sanitize_column_names

        named = sanitize_column_names(self.table.schema())
        return named, arrow_schema(named, include_field_ids=True)

    # --- which folder it is ---------------------------------------------------------

    def identify(self) -> str:
        """Return the id of the folder, made by whoever is the first; durable then.

        An object store has none: what its table is called is the same everywhere.
        """
        return self._local.identify() if self._local else "object store"

    def read_id(self) -> str | None:
        """Return its id; None if it has none: it is new, or it is not mounted."""
        return self._local.read_id() if self._local else "object store"

    # --- what a commit lists --------------------------------------------------------

    def read(self, location: str) -> bytes:
        """Return what a file holds; FileNotFoundError if it is not there."""
        with self.table.io.new_input(location).open() as file:
            return bytes(file.read())

    def data_files(self, stem: str, digest: str, spec: int) -> list[Any]:
        """Return what the manifest of a branch has, as it was when it voted.

        Raises:
            FileNotFoundError: it is gone.
            ParticipantRefusedError: it is another one.
        """
        from pyiceberg.manifest import ManifestContent, ManifestFile

        content = self.read(location := self.manifest(stem))
        if hashlib.sha256(content).hexdigest() != digest:
            raise ParticipantRefusedError(
                f"{location} is not what its task has written: nothing was changed"
            )
        manifest = ManifestFile.from_args(
            manifest_path=location,
            manifest_length=len(content),
            partition_spec_id=spec,
            content=ManifestContent.DATA,
            **dict.fromkeys(
                ("sequence_number", "min_sequence_number", "added_snapshot_id"), 0
            ),
        )
        return [e.data_file for e in manifest.fetch_manifest_entry(self.table.io)]

    def sizes(self, locations: Iterable[str]) -> list[int | None]:
        """Return the bytes that files have; None for one that is not there."""
        found: list[int | None] = []
        for files, paths in self._at(locations):
            found += sizes_of(files, paths)
        return found

    # --- removing -------------------------------------------------------------------

    def drop(self, paths: Sequence[str]) -> None:
        """Remove files of a branch, and its manifest behind them."""
        with self._unless_denied("of a branch"):
            self._drop(paths)

    def _drop(self, paths: Sequence[str]) -> None:
        self._delete(map(self.location, paths))
        self._delete(map(self.manifest, {_stem(path) for path in paths}))

    def clean(self, transaction: TransactionId) -> None:
        """Remove what was prepared in a transaction: its task may have been killed.

        Where the store denies that, it stays, and a line says so: no reader sees it.
        """
        with self._unless_denied(transaction):
            self._clean(transaction)

    def _clean(self, transaction: TransactionId) -> None:
        self._drop(self._written(transaction))
        stems = self._prepared(transaction.application).items()
        self._delete(self.manifest(stem) for stem, of in stems if of == transaction)
        if self._local:
            with contextlib.suppress(OSError):
                folder = f"{self._name}.{transaction}"
                (self._local.path / "_tpc" / self._own / folder).rmdir()

    def clean_late(
        self,
        committed: TransactionId,
        chosen: Collection[str],
        earlier: Iterable[TransactionId],
        kept: Callable[[TransactionId], Collection[str] | None],
    ) -> None:
        """Remove what is prepared of batches up to one that is committed, and are over.

        `chosen` are its files, and `earlier` are attempts at its batch. `kept` returns
        the files that are committed of an earlier batch; None: nothing tells, and all
        of it stays. Nothing holds back what is proven: what cannot be told or removed
        is warned of, and tried again.
        """
        with self._unless_denied(committed), self._whatever_happens(committed):
            self._drop([p for p in self._written(committed) if p not in chosen])
            self._delete(map(self.manifest, {_stem(path) for path in chosen}))
            for attempt in earlier:
                self._drop(self._written(attempt))
            prepared = self._prepared(committed.application)
            for stem, transaction in prepared.items():
                with self._whatever_happens(transaction):
                    # A batch commits once (rule 18): no other attempt can be needed.
                    keep: Collection[str] | None = ()
                    if transaction == committed:
                        keep = chosen
                    elif transaction.batch != committed.batch:
                        is_later = transaction.batch > committed.batch
                        keep = None if is_later else kept(transaction)
                    if keep is not None:
                        self._drop_branch(transaction, stem, keep)

    @contextlib.contextmanager
    def _unless_denied(self, of: object) -> Iterator[None]:
        try:
            yield
        except PermissionError as error:
            self._warn(of, f"this may not be removed: {first_line(error)}")

    @contextlib.contextmanager
    def _whatever_happens(self, of: TransactionId) -> Iterator[None]:
        try:
            yield
        except PermissionError:  # so may nothing else
            raise
        except Exception as error:  # noqa: BLE001 - what is proven is acknowledged
            self._warn(of, f"{first_line(error)}; the next commit tries it again")

    def _warn(self, of: object, reason: str) -> None:
        about = self.path, of, self._name, f"{self.root}/[._]tpc/{self._own}", reason
        logger.warning(
            "files left: table=%s transaction=%s participant=%s place=%s: %s", *about
        )

    def _drop_branch(
        self, transaction: TransactionId, stem: str, keep: Collection[str]
    ) -> None:
        written = [p for p in self._written(transaction) if _stem(p) == stem]
        self._delete(self.location(path) for path in written if path not in keep)
        self._delete([self.manifest(stem)])

    def _written(self, transaction: TransactionId) -> list[str]:
        """Return the data files of a transaction, committed or not, by name."""
        names = self._names(self.location(f"{transaction}.x"))
        return [name for name in names if PREPARED.fullmatch(name)]

    def _prepared(self, application: str) -> dict[str, TransactionId]:
        """Return the branches of an application that have a manifest."""
        prepared = {}
        for name in self._names(self.manifest(f"{application}.x")):
            stem = name.removesuffix(".avro")
            if made := PREPARED.fullmatch(f"{stem}.0.parquet"):
                with contextlib.suppress(ValueError):  # no id: it is not ours
                    prepared[stem] = TransactionId.parse(made["transaction"])
        return prepared

    def _names(self, location: str) -> list[str]:
        ((files, (path,)),) = self._at([location])
        return names_in(files, path.rpartition("/")[0])

    def _delete(self, locations: Iterable[str]) -> None:
        """Remove files; one that is gone is.

        Raises:
            PermissionError: the store denies it.
        """
        for files, paths in self._at(locations):
            try:
                remove(files, paths)
            except OSError as error:
                if error.errno == errno.EROFS or _DENIED.search(str(error)):
                    raise PermissionError(str(error)) from error
                raise

    def _at(self, locations: Iterable[str]) -> Iterator[tuple[Any, list[str]]]:
        """Yield the file system of locations, of one place, and their paths in it."""
        from pyarrow import fs
        from pyiceberg.io.pyarrow import PyArrowFileIO

        at = [PyArrowFileIO.parse_location(location) for location in locations]
        if at:
            io, (scheme, netloc, _) = self.table.io, at[0]
            if isinstance(io, PyArrowFileIO):
                files = io.fs_by_scheme(scheme, netloc)
            else:
                files = fs.PyFileSystem(fs.FSSpecHandler(io.get_fs(scheme)))
            yield files, [path for _, _, path in at]

    # --- durable --------------------------------------------------------------------

    def flush(self, locations: Iterable[str]) -> None:
        """Make files durable with their names; an object store's are, once written."""
        from pyiceberg.io.pyarrow import PyArrowFileIO

        folders = set[Path]()
        for location in locations:
            scheme, _, path = PyArrowFileIO.parse_location(location)
            if scheme == "file":
                with open(path, "rb") as file:
                    os.fsync(file.fileno())
                folders.add(Path(path).parent)
        if folders and self._local:
            # Each folder from the table's on may have been made for these files.
            flush_folders(
                Path(os.path.commonpath([*folders, self._local.path.parent])), folders
            )


class TableFiles:
    """The files of one branch, while its task writes them.

    Memory is bounded: rows are written once there are 32 MiB of them, of at most 256
    files that are open, each with its codec; of one that is closed what the manifest
    has of it is kept. Nothing is durable before `close` returns.

    Args:
        folder: of the table, as it was when the branch was begun.
        stem: what their names begin with.
    """

    def __init__(self, folder: TableFolder, stem: str) -> None:
        self.digest = ""  # of the manifest, once it is closed
        self._folder = folder
        self._stem = stem
        self._held: list[pa.RecordBatch] = []
        self._bytes = 0  # of them
        self._open: dict[tuple[str, ...], _File] = {}  # by partition
        self._made: dict[str, Any] = {}  # what the manifest has of each, once closed
        self._largest = target_size(folder.table)

    def write(self, batch: pa.RecordBatch) -> None:
        """Take the rows of an Arrow batch, in the table's types."""
        self._held.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= IN_MEMORY:
            self._write_held()

    def close(self) -> list[dict[str, Any]]:
        """Make all files durable, and the manifest that the commit reads.

        Returns the name, rows and bytes of each. One that was removed meanwhile raises:
        its transaction is over.
        """
        self._write_held()
        for key in list(self._open):
            self._close(key)
        self._folder.flush(map(self._folder.location, self._made))
        failpoint("iceberg.before_manifest")
        self._write_manifest()
        return [
            {
                "path": path,
                "rows": file.record_count,
                "bytes": file.file_size_in_bytes,
            }
            for path, file in self._made.items()
        ]

    def drop(self) -> None:
        """Remove the files; what cannot be removed is left to the transaction's end."""
        for file in self._open.values():
            with contextlib.suppress(Exception):
                file.writer.close()
        self._folder.drop([*self._made])

    def _write_held(self) -> None:
        import pyarrow as pa

        if not self._held:
            return
        rows, self._held, self._bytes = pa.Table.from_batches(self._held), [], 0
        for partition, part in _partitions(self._folder.table, rows):
            key = tuple(map(repr, partition))  # 0.0 equals -0.0, and no NaN another
            file = self._open.get(key) or self._begin(key, partition)
            file.write(part)
            if file.held >= self._largest:
                self._close(key)

    def _begin(self, key: tuple[str, ...], partition: tuple[Any, ...]) -> _File:
        if len(self._open) == MAX_FILES:
            self._close(next(iter(self._open)))
        if len(self._made) == MOST_FILES:
            raise ConfigurationError(
                f"one task has rows for more than {MOST_FILES} files of "
                f"{self._folder.path}, by the table's partitions: repartition the "
                "DataFrame by these, or partition by fewer values"
            )
        path = f"{self._stem}.{len(self._made)}.parquet"
        self._made[path] = None
        self._open[key] = file = _File(self._folder, path, partition)
        return file

    def _close(self, key: tuple[str, ...]) -> None:
        file = self._open.pop(key)
        self._made[file.path] = file.close()
        failpoint("iceberg.between_files")

    def _write_manifest(self) -> None:
        """Write what a commit needs beyond names: partition, counts, bounds."""
        from pyiceberg.manifest import (
            ManifestEntry,
            ManifestEntryStatus,
            write_manifest,
        )

        table, location = self._folder.table, self._folder.manifest(self._stem)
        with write_manifest(
            format_version=table.format_version,
            spec=table.spec(),
            schema=table.schema(),
            output_file=table.io.new_output(location),
            snapshot_id=0,
            avro_compression="deflate",
        ) as manifest:
            for file in self._made.values():
                entry = ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED,
                    snapshot_id=0,
                    data_file=file,
                )
                manifest.add(entry)
        self._folder.flush([location])
        self.digest = hashlib.sha256(self._folder.read(location)).hexdigest()


class _File:
    """A file that is open."""

    def __init__(
        self, folder: TableFolder, path: str, partition: tuple[Any, ...]
    ) -> None:
        from pyiceberg.io.fileformat import FileFormatFactory
        from pyiceberg.manifest import FileFormat

        self.path = path
        self.held = 0
        self._partition = partition
        table, (columns, self._schema) = folder.table, folder.columns
        self._spec = table.spec().spec_id
        self._output = table.io.new_output(folder.location(path))
        model = FileFormatFactory.get(FileFormat.PARQUET)
        self.writer = model.create_writer(self._output, columns, table.properties)

    def write(self, rows: pa.Table) -> None:
        import pyarrow as pa

        columns = [
            as_declared(column.combine_chunks(), field)
            for column, field in zip(rows.columns, self._schema, strict=True)
        ]
        self.writer.write(pa.Table.from_arrays(columns, schema=self._schema))
        self.held += rows.nbytes

    def close(self) -> Any:
        """End it; return what a manifest has of it."""
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.typedef import Record

        statistics = self.writer.close().to_serialized_dict()
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self._output.location,
            file_format=FileFormat.PARQUET,
            partition=Record(*self._partition),
            file_size_in_bytes=len(self._output),
            **dict.fromkeys(("sort_order_id", "equality_ids", "key_metadata")),
            spec_id=self._spec,
            **statistics,
        )


def _partitions(
    table: Any, rows: pa.Table
) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    """Yield the rows of each partition, behind its values; without partitions, all.

    pyiceberg takes 0.0 and -0.0 for two partitions, and fills both with what equals
    either; of NaN it finds no row.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if table.spec().is_unpartitioned():
        yield (), rows
        return
    found: list[tuple[Any, ...]] = [()]
    codes: Any = pa.array([0] * rows.num_rows, pa.int64())  # each row's among these
    for field in table.spec().fields:
        column = _column(table.schema(), field.source_id, rows)
        source = table.schema().find_field(field.source_id).field_type
        indices, values = _encode(field.transform.pyarrow_transform(source)(column))
        both = pc.add(pc.multiply(codes, len(values)), indices).dictionary_encode()
        pairs = [divmod(n, len(values)) for n in both.dictionary.to_pylist()]
        found = [(*found[before], values[n]) for before, n in pairs]
        codes = both.indices.cast("int64")
    counts = {n["values"]: n["counts"] for n in pc.value_counts(codes).to_pylist()}
    in_order, first = rows.take(pc.sort_indices(codes)), 0
    for n, partition in enumerate(found):
        yield partition, in_order.slice(first, counts[n])
        first += counts[n]


def _column(schema: Any, source_id: int, rows: pa.Table) -> Any:
    """Return the values of a column, or of what is inside of structs."""
    import pyarrow.compute as pc

    fields, path = schema.fields, list[str]()
    while True:
        field = next(f for f in fields if source_id in _ids_in(f))
        path.append(field.name)
        if field.field_id == source_id:
            column = rows.column(path[0]).combine_chunks()
            return pc.struct_field(column, path[1:]) if path[1:] else column
        fields = field.field_type.fields


def _ids_in(field: Any) -> set[int]:
    """Return the ids of a field and of all that is in it."""
    from pyiceberg.schema import Schema

    return set(Schema(field).field_ids)


def _encode(values: pa.Array) -> tuple[pa.Array, list[Any]]:
    """Return which distinct value each one is, and these as manifests have them.

    Two that are equal and not the same, as 0.0 and -0.0, are distinct; NaN is one.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    values = values.storage if isinstance(values, pa.ExtensionArray) else values
    kind, bits = values.type, None
    if pa.types.is_floating(kind):
        values = pc.if_else(pc.is_nan(values), pa.scalar(math.nan, kind), values)
    if pa.types.is_floating(kind) or pa.types.is_temporal(kind):
        bits = pa.int32() if kind.bit_width == 32 else pa.int64()
    encoded = (values.view(bits) if bits else values).dictionary_encode("encode")
    distinct = encoded.dictionary
    if pa.types.is_floating(kind):
        distinct = distinct.view(kind)
    return encoded.indices.cast("int64"), distinct.to_pylist()


def _stem(path: str) -> str:
    """Return what the names of all files of a branch begin with."""
    return path.rsplit(".", 2)[0]
