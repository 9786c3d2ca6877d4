"""Two participants for the fencing tests: what they hold, and what is in doubt."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fencing_support import sink_to
from support.service import create_app
from support.spark import held, serving

from tracing_2pc import ParticipantSink


@dataclasses.dataclass(frozen=True, slots=True)
class Service:
    """A participant that serves from a thread of the test."""

    url: str
    database: Path
    resource: Any

    def held(self) -> Counter[int]:
        """Return what its readers see, each row as often as it is there."""
        return held(self.database)

    def in_doubt(self) -> int:
        """Count the branches that wait for a decision."""
        return int(self.resource.gauges()["tpc.in_doubt.branches"])


@dataclasses.dataclass(frozen=True, slots=True)
class Services:
    """Participants a and b."""

    a: Service
    b: Service

    def sink(self) -> ParticipantSink:
        return sink_to(self.a.url, self.b.url)

    def held(self) -> tuple[Counter[int], Counter[int]]:
        return self.a.held(), self.b.held()

    def in_doubt(self) -> tuple[int, int]:
        return self.a.in_doubt(), self.b.in_doubt()


@contextlib.contextmanager
def services(folder: Path) -> Iterator[Services]:
    """Serve two participants, each with a SQLite file in the folder."""
    with contextlib.ExitStack() as stack:
        yield Services(*(stack.enter_context(_service(folder, n)) for n in "ab"))


@contextlib.contextmanager
def _service(folder: Path, name: str) -> Iterator[Service]:
    database = folder / f"{name}.db"
    app = create_app(f"sqlite:///{database}")
    resource = app.extensions["resource"]
    resource.open()
    with contextlib.closing(resource), serving(app) as url:
        yield Service(url, database, resource)
