"""A minute of it, and some kills; `make chaos MINUTES=30` is more."""

from __future__ import annotations

import json
import os
import random
import shutil
from functools import partial

import psycopg
import pytest
from support.waiting import AT_LAST

from chaos.events import Events
from chaos.mixed import PLACES, Mixed, Plan
from chaos.rounds import one_round, run


@pytest.mark.ci
@pytest.mark.spark
def test_a_minute_of_kills_costs_nothing():
    """Nothing is lost, doubled, split or stuck, whoever is killed or paused when."""
    lines: list[str] = []
    results = run(1.0, 2013, lines.append)
    faults = [fault for result in results for fault in result.faults]
    assert not faults, "\n".join([*lines, *faults])
    assert sum(result.deeds.total() for result in results) > 0
    assert sum(result.batches for result in results) > 0


@pytest.mark.ci
@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.skipif(
    not os.environ.get("TPC_ACTIVEMQ"), reason="asked by `make test-brokers`"
)
def test_each_event_that_was_taken_is_in_ledger_and_queue_once():
    """Whichever process, database or broker is killed or paused; clients post and send
    meanwhile, each until it is told, and some once more."""
    lines: list[str] = []
    chance = random.Random(2026)
    result = one_round(AT_LAST / 60, chance, lines.append, Events, most=5)
    assert not result.faults, "\n".join([*lines, *result.faults])
    assert result.deeds.total() == 5


class Tampered(Mixed):
    """At the end something is lost or doubled at each member, behind its back."""

    def faults(self) -> tuple[str, ...]:
        """Say what was wrong before that, and then what is seen of it."""
        before = super().faults()
        folder = self._folder
        for name in ("lines", "own"):
            next((folder / name).glob("*.json")).unlink()
        file = next((folder / "parquet").glob("part=*/*.parquet"))
        file.with_name(f"again-{file.name}").write_bytes(file.read_bytes())
        log = folder / "delta" / "_delta_log"
        texts = [one.read_text() for one in sorted(log.glob("*.json"))]
        actions = [json.loads(line) for text in texts for line in text.splitlines()]
        path = next(action["add"]["path"] for action in actions if "add" in action)
        last = log / f"{len(texts):020}.json"
        last.write_text(json.dumps({"remove": {"path": path}}))
        of_numbers = (
            "DELETE FROM numbers_tpc WHERE value = (SELECT max(value) FROM numbers)"
        )
        for database, statement in (
            (self._databases["a"], of_numbers),
            (self._databases["b"], of_numbers),
            (self._rejected, "DELETE FROM rejected_tpc WHERE record LIKE '%: 2,%'"),
        ):
            with psycopg.connect(database.replace("+psycopg", "")) as connection:
                assert connection.execute(statement).rowcount
        return (*(f"before: {fault}" for fault in before), *super().faults())


@pytest.mark.ci
@pytest.mark.spark
def test_what_is_planted_at_any_member_of_a_round_is_seen():
    """Services, folders, a Delta table and a sink of one's own, in one transaction that
    keeps state, and a table of the rows that they refuse: some kills cost nothing; then
    each oracle sees a fault of its own."""
    lines: list[str] = []
    plan = Plan("foreachBatch", "grpc", PLACES, state=True, rejects=True)
    make = partial(Tampered, plan=plan)
    result = one_round(AT_LAST / 60, random.Random(7), lines.append, make, most=4)
    seen = {fault.partition(":")[0] for fault in result.faults}
    assert seen == {"a", "b", "rejected", *PLACES}, "\n".join([*lines, *result.faults])
    assert any("parquet: doubled" in fault for fault in result.faults)
    assert any("delta: lost" in fault for fault in result.faults)
    shutil.rmtree(result.kept)
