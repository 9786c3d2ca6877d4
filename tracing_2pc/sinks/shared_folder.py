"""A folder of files, and what is in it that no reader sees.

    region=north/orders.7.1.0.42.<token>.0.parquet       committed: readers see it
    .tpc/files.orders.7.1.0.42.<token>.0.parquet.tmp     prepared, or left over
    .tpc/files.orders.7.1.0.42.<token>.columns.parquet.<digest>.tmp   its new columns
    _tpc/files.orders/7.manifest                         proves that 7 is committed
    _tpc/folder-id                                       is this the same folder?
    _tpc/parquet.columns/<digest>                        what its files have

Readers of folders pass over names that begin with a dot or an underscore. Some list
them all the same: no folder is ever removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tracing_2pc.core.errors import (
    ParticipantRefusedError,
    ParticipantUnavailableError,
)
from tracing_2pc.core.model import TransactionId
from tracing_2pc.sinks.branch_files import (
    ENCODERS,
    TEMPORARY,
    LocalOutput,
    exists,
    flush_folders,
    make_folders,
)
from tracing_2pc.sinks.values import raise_if_apart

logger = logging.getLogger(__name__)

_TRANSACTION: Final = r"(?P<transaction>.+\.[0-9]+\.[0-9]+)"
_STEM: Final = rf"{_TRANSACTION}\.(?P<branch>[0-9]+\.[0-9]+)\.[0-9a-f]{{12}}"
PREPARED: Final = re.compile(rf"{_STEM}\.[0-9]+\.({'|'.join(ENCODERS)})")
_MANIFEST: Final = re.compile(rf"{_TRANSACTION}\.manifest\.[0-9a-f]+")
_RESERVED: Final = re.compile(
    rf"(?P<sink>[^.]+)\.{_STEM}\.columns\.({'|'.join(ENCODERS)})"
    rf"\.(?P<digest>[0-9a-f]{{32}}){re.escape(TEMPORARY)}"
)


class AsideFolder:
    """What is prepared, by transaction, until that is over."""

    def clean(self, transaction: TransactionId) -> None:
        """Remove what is aside of a transaction."""
        self._remove(self._left(transaction.application).get(transaction, ()))

    def clean_late(
        self, committed: TransactionId, is_over: Callable[[TransactionId], bool]
    ) -> None:
        """Remove what is aside of batches up to one that is committed, and are over.

        Nothing holds back what is proven: what cannot be told or removed is warned of,
        and the next commit tries it again.
        """
        for transaction, files in self._left(committed.application).items():
            try:
                if transaction.batch <= committed.batch and is_over(transaction):
                    self._remove(files)
            except Exception:
                logger.warning("files left: transaction=%s", transaction, exc_info=True)

    def _left(self, application: str) -> dict[TransactionId, list[Any]]:
        """Return what is aside of an application, by transaction."""
        raise NotImplementedError

    def _remove(self, files: Iterable[Any]) -> None:
        raise NotImplementedError


class SharedFolder(AsideFolder):
    """The places of one participant in a folder that others may write to as well."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self._name = name

    def aside(self, path: str) -> Path:
        """Return where a file is until it is committed, by its path then.

        Its name alone tells: it begins with its transaction.
        """
        return self.path / ".tpc" / f"{self._name}.{Path(path).name}{TEMPORARY}"

    def create(self, path: str) -> LocalOutput:
        """Create a file aside, by its path once it is committed."""
        target = self.aside(path)
        target.parent.mkdir(exist_ok=True)
        return LocalOutput(target)

    def flush(self, paths: Iterable[str]) -> None:
        """Make the names of files durable that are aside."""
        flush_folders(self.path, {self.aside(path).parent for path in paths})

    def raise_if_linked(self, paths: Iterable[str]) -> None:
        """Refuse files in a folder that is a symbolic link: it may lead elsewhere."""
        for folder in sorted({p for path in paths for p in Path(path).parents}):
            if folder.name and (self.path / folder).is_symlink():
                raise ParticipantRefusedError(
                    f"{self.path / folder} is a symbolic link, and files would leave "
                    "the folder by it: put a folder in its place"
                )

    def drop(self, paths: Sequence[str]) -> None:
        """Remove what a branch has prepared of its files, and what it has reserved."""
        self._remove(map(self.aside, paths))
        for stem in {stem_of(path) for path in paths}:
            for file in (self.path / ".tpc").glob(f"{self._name}.{stem}.columns.*"):
                file.unlink(missing_ok=True)

    def _remove(self, files: Iterable[Path]) -> None:
        for file in files:
            file.unlink(missing_ok=True)

    def _left(self, application: str) -> dict[TransactionId, list[Path]]:
        """Return what is aside of an application, by transaction."""
        left = dict[TransactionId, list[Path]]()
        for file in (self.path / ".tpc").glob(f"{self._name}.{application}.*"):
            name = file.name.removeprefix(f"{self._name}.").removesuffix(TEMPORARY)
            if made := (
                PREPARED.fullmatch(name)
                or _MANIFEST.fullmatch(name)
                or _RESERVED.fullmatch(file.name)
            ):
                with contextlib.suppress(ValueError):  # no id: it is not ours
                    of = TransactionId.parse(made["transaction"])
                    left.setdefault(of, []).append(file)
        return left

    # --- which folder it is ---------------------------------------------------------

    def read_id(self) -> str | None:
        """Return its id; None if it has none: it is new, or it is not mounted."""
        with contextlib.suppress(FileNotFoundError):
            return self._id_file.read_text(encoding="utf-8")
        return None

    def identify(self) -> str:
        """Return its id, made with the folder by whoever is the first; durable then."""
        if (known := self.read_id()) is not None:
            return known
        above = next(p for p in self.path.parents if p.exists())
        make_folders(above, [self._id_file.parent, self.path / ".tpc"])
        temporary = self._id_file.with_suffix(f".{uuid.uuid4().hex}{TEMPORARY}")
        _write_durable(temporary, uuid.uuid4().hex)
        with contextlib.suppress(FileExistsError):
            os.link(temporary, self._id_file)  # unlike a rename, it replaces none
        temporary.unlink()
        flush_folders(self._id_file.parent, [self._id_file.parent])
        return self._id_file.read_text(encoding="utf-8")

    @property
    def _id_file(self) -> Path:
        return self.path / "_tpc" / "folder-id"

    # --- what the files have --------------------------------------------------------

    def layout(self, kind: str) -> dict[str, Any]:
        """Return the layout of the committed files of a format; empty if not known."""
        known: dict[str, Any] = {}
        for file in sorted(self._layouts(kind).glob("*")):
            part = _read(file, "partition_by", "columns")
            known = {**part, "columns": known.get("columns", {}) | part["columns"]}
        return known

    def reserve_layout(
        self, transaction: TransactionId, path: str, layout: dict[str, Any]
    ) -> None:
        """Reserve what a branch adds to the layout; durable until the transaction ends.

        `path` is of one of its files.

        Raises:
            ConfigurationError: it does not fit what is committed, or reserved by
                another. Of two at once one at least sees the other, perhaps both do.
        """
        digest = hashlib.sha256(json.dumps(layout).encode()).hexdigest()[:32]
        kind = path.rpartition(".")[2]
        own = self.aside(f"{stem_of(path)}.columns.{kind}.{digest}")
        self._put(transaction, own, layout)
        try:
            # In this order: what is reserved is noted before it is removed.
            for other, file in self._reserved(transaction, kind, digest):
                with contextlib.suppress(FileNotFoundError):
                    known = _read(file, "partition_by", "columns")
                    raise_if_apart(layout, kind, known, f"files of {other} in .tpc/")
            raise_if_apart(layout, kind, self.layout(kind))
        except BaseException:
            own.unlink()
            raise

    def _reserved(
        self, transaction: TransactionId, kind: str, digest: str
    ) -> Iterator[tuple[str, Path]]:
        """Yield who has reserved another layout than this, and where; each once."""
        found = dict[tuple[str, ...], Path]()
        for file in (self.path / ".tpc").glob(f"*.columns.{kind}.*"):
            made = _RESERVED.fullmatch(file.name)
            if made and made["digest"] != digest:
                found[made.group("sink", "transaction", "digest")] = file
        for (sink, other, _), file in found.items():
            of = TransactionId.parse(other)
            earlier = (sink, of.application, of.batch) == (
                *(self._name, transaction.application, transaction.batch),
            ) and of.attempt < transaction.attempt  # aborted: a batch commits once
            if not earlier and SharedFolder(self.path, sink).committed(of) is None:
                yield f"{sink}.{other}", file

    def note_layout(self, transaction: TransactionId, kind: str) -> None:
        """Add to it what a transaction has reserved; durable. Idempotent."""
        noted = self._layouts(kind)
        make_folders(self.path, [noted])
        reserved = f"{self._name}.{transaction}.*.columns.{kind}.*"
        for file in (self.path / ".tpc").glob(reserved):
            with contextlib.suppress(FileNotFoundError):  # overtaken: it is noted
                file.rename(noted / file.name.split(".")[-2])
        flush_folders(noted, [noted])

    def _layouts(self, kind: str) -> Path:
        return self.path / "_tpc" / f"{kind}.columns"

    # --- manifests ------------------------------------------------------------------

    def committed(self, transaction: TransactionId) -> str | None:
        """Return the attempt that has committed a transaction's batch, if one has.

        Raises:
            ParticipantUnavailableError: its manifest is damaged.
        """
        with contextlib.suppress(FileNotFoundError):
            manifest = _read(self._manifest(transaction), "files", "transaction")
            return str(manifest["transaction"])
        return None

    def newest(self, application: str) -> int | None:
        """Return the last batch that has a manifest, if one has."""
        job = self.path / "_tpc" / f"{self._name}.{application}"
        batches = (path.stem for path in job.glob("*.manifest"))
        return max((int(n) for n in batches if n.isdecimal()), default=None)

    def confirm_manifest(
        self, transaction: TransactionId, files: Sequence[dict[str, Any]]
    ) -> None:
        """Make a manifest durable that was found, and see that it is of these files.

        Raises:
            ParticipantRefusedError: it is not: another log has the same transaction.
        """
        target = self._manifest(transaction)
        written = _read(target, "files", "transaction")["files"]
        if {file["path"] for file in written} != {file["path"] for file in files}:
            raise ParticipantRefusedError(
                f"{transaction} is committed in {self.path} with other files, by a job "
                "of the same application name with another log"
            )
        flush_folders(target.parent, [target.parent])

    def write_manifest(
        self, transaction: TransactionId, files: Sequence[dict[str, Any]]
    ) -> None:
        """Say that these files are a transaction's; durable, in one step.

        Raises:
            ParticipantRefusedError: another log has said so of other files meanwhile.
        """
        manifest = {
            "transaction": str(transaction),
            "rows": sum(file["rows"] for file in files),
            "files": sorted(files, key=lambda file: str(file["path"])),
        }
        target = self._manifest(transaction)
        try:
            self._put(transaction, target, manifest)
        except FileNotFoundError:
            if not exists(target):
                raise
            self.confirm_manifest(transaction, files)  # its commit has removed ours

    def _put(
        self, transaction: TransactionId, target: Path, said: dict[str, Any]
    ) -> None:
        temporary = self.aside(f"{transaction}.manifest.{uuid.uuid4().hex}")
        make_folders(self.path, [target.parent, temporary.parent])
        _write_durable(temporary, json.dumps(said, indent=1) + "\n")
        temporary.rename(target)
        flush_folders(target.parent, [target.parent])

    def _manifest(self, transaction: TransactionId) -> Path:
        job = f"{self._name}.{transaction.application}"
        return self.path / "_tpc" / job / f"{transaction.batch}.manifest"


def stem_of(path: str) -> str:
    """Return what the names of all files of a branch begin with."""
    return Path(path).name.rsplit(".", 2)[0]


def _read(path: Path, *keys: str) -> dict[str, Any]:
    """Read what `SharedFolder` has written."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        if said.keys() >= {*keys}:
            return dict(said)
        reason = "a part is missing"
    except (ValueError, AttributeError) as error:
        reason = str(error)
    raise ParticipantUnavailableError(
        f"{path} is damaged ({reason}): put it back from a copy; or, if all files of "
        "its batch are in the folder, delete it"
    )


def _write_durable(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
