"""The kit for authors of sinks: ours keep its promises, and it finds each fault."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
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

CASES = {
    name: case
    for name, case in vars(faulty_sinks).items()
    if name.startswith("Test") and issubclass(case, Case)
}
FAULTY = {name: case for name, case in CASES.items() if case.fails}


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


def outcomes(tests: Collection[str], scratch: Path) -> dict[tuple[str, str], str]:
    """Run tests of the faulty sinks; return the message of each, empty if it passed."""
    return messages([f"{faulty_sinks.__file__}::{test}" for test in tests], scratch)


@pytest.mark.ci
def test_each_fault_is_found_by_the_test_that_names_it(tmp_path):
    """By its author's promise, in one line."""
    named = {(name, case.fails[0]) for name, case in FAULTY.items()}
    found = outcomes([f"{name}::{test}" for name, test in named], tmp_path)
    assert {name for name, message in found.items() if message} == named
    for message in found.values():
        assert len(message.splitlines()) == 1


@pytest.mark.ci
def test_a_fault_fails_no_other_promise(tmp_path):
    """What each faulty sink fails is beside it; the correct ones fail nothing."""
    found = outcomes(CASES, tmp_path)
    failed: dict[str, set[str]] = {name: set() for name in CASES}
    for (case, test), message in found.items():
        if message:
            failed[case].add(test)
    assert failed == {name: set(case.fails) for name, case in CASES.items()}


class TestCorrect(faulty_sinks.TestCorrect):
    """A sink in one file passes."""


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
