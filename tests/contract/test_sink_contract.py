"""The kit for authors of sinks: ours keep its promises, and it finds each fault."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import faulty_sinks
import pytest
from faulty_resources import select
from faulty_sinks import Case, Correct
from support.kinds import sqlite_url, tagged_rows
from support.participant import World
from support.programs import messages
from support.served import served
from support.waiting import PATIENT
from werkzeug.serving import make_server

from tracing_2pc import FileSink, ParticipantSink
from tracing_2pc.sinks import CompositeSink
from tracing_2pc.testing import SinkContract
from tracing_2pc.testing.sink_contract import KILLS

SHOWN = """SELECT id, amount FROM orders_tpc
WHERE tpc_tag NOT IN (SELECT tag FROM orders_tpc_hidden)"""

CASES = {
    name: case
    for name, case in vars(faulty_sinks).items()
    if name.startswith("Test") and issubclass(case, Case)
}


class Service:
    """A ledger that is served from this process."""

    def __init__(self, world: World, url: str, folder: Path) -> None:
        self.world = world
        self.url = url
        self.folder = folder

    def rows(self) -> list[dict[str, Any]]:
        return select(sqlite_url(self.folder), "orders")


class KilledInCi(SinkContract):
    """Its processes are run from `make ci` on; `make test` runs `TestCorrect`'s."""

    @pytest.mark.ci
    @pytest.mark.parametrize("moment", KILLS)
    def test_a_process_is_killed(self, world: Any, tmp_path: Path, moment: str) -> None:
        super().test_a_process_is_killed(world, tmp_path, moment)

    @pytest.mark.parametrize(
        "by", ["threads", pytest.param("processes", marks=pytest.mark.ci)]
    )
    def test_batches_are_committed_at_once(
        self, world: Any, tmp_path: Path, by: str
    ) -> None:
        super().test_batches_are_committed_at_once(world, tmp_path, by)


class TestParticipantSink(KilledInCi):
    """A participant is a service; the sink is its client."""

    @pytest.fixture
    def where(self, tmp_path) -> Iterator[Service]:
        world = tagged_rows(sqlite_url(tmp_path))
        server = make_server("127.0.0.1", 0, world.app, threaded=True)
        with contextlib.closing(world.resource), served(server) as running:
            yield Service(world, f"http://127.0.0.1:{running.server_port}", tmp_path)

    def make_sink(self, where: Service) -> Any:
        return ParticipantSink({"participant": where.url}, token=None, timeout=PATIENT)

    def refused(self, where: Service) -> Mapping[str, Any]:
        columns = "id bigint CHECK (id >= 0) UNIQUE, amount double, tpc_tag bigint"
        with contextlib.closing(
            sqlite3.connect(where.folder / "participant.db")
        ) as database:
            database.execute(f"CREATE TABLE orders_tpc ({columns} NOT NULL)")
            database.execute(f"CREATE VIEW orders AS {SHOWN}")  # it has started before
        return {**self.record(0), "id": -1}

    def visible(self, where: Service) -> Iterable[Mapping[str, Any]]:
        return where.rows()

    def leftovers(self, where: Service) -> Iterable[Any]:
        return where.world.listed("?state=prepared")


class TestCompositeSink(TestParticipantSink):
    """A service and a hand-written sink, in one transaction."""

    def make_sink(self, where: Service) -> Any:
        return CompositeSink([super().make_sink(where), Correct(self._store(where))])

    def visible(self, where: Service) -> Iterable[Mapping[str, Any]]:
        own = faulty_sinks.read("visible", self._store(where))
        assert sorted(map(str, own)) == sorted(map(str, where.rows()))
        return own

    def leftovers(self, where: Service) -> Iterable[Any]:
        prepared = faulty_sinks.read("prepared", self._store(where))
        return [*super().leftovers(where), *prepared]

    def _store(self, where: Service) -> str:
        return f"{where.folder}/store.db"


@pytest.mark.ci
def test_a_fault_fails_what_it_breaks_and_no_other_promise(tmp_path):
    """Each is beside its sink; the first, which names the fault, says it in a line."""
    tests = [f"{faulty_sinks.__file__}::{case}" for case in CASES]
    failed: dict[str, set[str]] = {name: set() for name in CASES}
    for (case, test), message in messages(tests, tmp_path).items():
        if message:
            failed[case].add(test)
        if [test] == [*CASES[case].fails[:1]]:
            assert len(message.splitlines()) == 1
    assert failed == {name: set(case.fails) for name, case in CASES.items()}


class TestCorrect(faulty_sinks.TestCorrect):
    """A sink in one file passes."""


@pytest.mark.ci
class TestRefuses(faulty_sinks.TestRefuses):
    """One that names the rows that it refuses passes, too."""


@pytest.mark.ci
class TestCorrectInOneCall(faulty_sinks.TestCorrectInOneCall):
    """And one that is told the whole decision in one call."""


def test_the_kit_loads_pytest_only_when_it_is_asked_for():
    """`tracing_2pc.testing` is used by programs, too."""
    code = "import sys, tracing_2pc.testing; assert 'pytest' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


class TestFileSink(KilledInCi):
    """A folder, whose readers pass over hidden files."""

    def make_sink(self, where: Path) -> Any:
        return FileSink(str(where / "orders"), format="json")

    def visible(self, where: Path) -> Iterable[Mapping[str, Any]]:
        lines = [f.read_text() for f in (where / "orders").glob("*.json")]
        return [json.loads(line) for text in lines for line in text.splitlines()]

    def leftovers(self, where: Path) -> Iterable[Any]:
        return [str(path) for path in where.rglob("*.tmp")]
