"""A participant that keeps records in files: it stands on `ExternalBranches` alone."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.states import BranchState
from tracing_2pc.outbox.records import json_records
from tracing_2pc.participant.branch_store import BranchUpload
from tracing_2pc.participant.engine import ParticipantEngine
from tracing_2pc.participant.journal.journal import Journal
from tracing_2pc.participant.journal.open_database import open_database
from tracing_2pc.participant.journal.schema import Tables
from tracing_2pc.participant.resources.external_branches import (
    ExternalBranch,
    ExternalBranches,
    ExternalEvidence,
    Written,
)

NAME = re.compile(r"(\d+)-(.+)-\d+\.\d+")


class Files(ParticipantEngine):
    """Writes a file for each branch, and renames it at commit."""

    def __init__(self, url: str, folder: Path) -> None:
        place = FilePlace(folder)
        evidence = ExternalEvidence(place)
        journal = Journal(
            Tables("files", "files"), open_database(url), evidence=evidence
        )
        super().__init__(journal, ExternalBranches(journal, place))


class FilePlace:
    """Files of a folder, named by tag, transaction and branch (`BranchPlace`)."""

    shares_flush = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.writing, self.waiting = folder / ".writing", folder / ".prepared"

    def set_up(self, connection: Connection) -> None:
        for folder in (self.writing, self.waiting):
            folder.mkdir(parents=True, exist_ok=True)

    def find(self, connection: Connection) -> None:
        pass

    @contextlib.contextmanager
    def write(self, upload: BranchUpload) -> Iterator[Written]:
        name = f"{upload.tag}-{upload.transaction}-{upload.ref.branch}"
        path = self.writing / name
        try:
            upload.verify(self.load(upload, path))
            yield Written(lambda: move(path, self.waiting / name))
        finally:
            path.unlink(missing_ok=True)

    def load(self, upload: BranchUpload, path: Path) -> int:
        """Write a file; return how many records it has."""
        rows = 0
        with upload.receive() as source, path.open("x") as file:
            for record in json_records(source, upload.ref.rows):
                rows += 1
                file.write(f"{record}\n")
            file.flush()
            os.fsync(file.fileno())
        return rows

    def prepared(self, connection: Connection) -> dict[int, ExternalBranch]:
        names = [(name, NAME.fullmatch(name)) for name in os.listdir(self.waiting)]
        return {
            int(match[1]): ExternalBranch(name, TransactionId.parse(match[2]))
            for name, match in names
            if match
        }

    def committed(self, connection: Connection, tags: Collection[int]) -> set[int]:
        names = map(NAME.fullmatch, os.listdir(self.folder))
        return set(tags) & {int(match[1]) for match in names if match}

    def forget(self, connection: Connection, tags: sa.Select[Any]) -> None:
        """Keep the evidence: it is the data."""

    def end(
        self, connection: Connection, branch: ExternalBranch, outcome: BranchState
    ) -> bool:
        path = self.waiting / branch.name
        try:
            if outcome is BranchState.COMMITTED:
                move(path, self.folder / branch.name)
            else:
                path.unlink()
                flush(self.waiting)
        except FileNotFoundError:
            return False
        return True

    def usage(
        self, connection: Connection, branches: Collection[ExternalBranch]
    ) -> dict[str, int]:
        return {}

    def gauges(self, connection: Connection) -> dict[str, float]:
        return {}

    def visible(self) -> int:
        """Count the records that a reader of the folder sees."""
        files = (path for path in self.folder.iterdir() if path.is_file())
        return sum(len(path.read_text().splitlines()) for path in files)


def move(path: Path, to: Path) -> None:
    path.rename(to)
    flush(to.parent)
    flush(path.parent)


def flush(folder: Path) -> None:
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
