"""How a point is reached: what happens to a world until every driver has finished."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import sqlalchemy as sa

from crash import oracle, outside, source
from crash.deaths import variables
from crash.kinds import TABLE
from crash.world import APPLICATION, World

AN_HOUR = 3600.0

_COMMITS = {
    "postgresql.in_decide": (
        "tpc_transaction",
        "UPDATE WHEN (NEW.decision = 'commit')",
    ),
    "postgresql.in_prepare": (
        f"{TABLE}_tpc_branch",
        "INSERT OR UPDATE WHEN (NEW.state = 'prepared')",
    ),
    "postgresql.in_commit": (
        f"{TABLE}_tpc_branch",
        "UPDATE WHEN (NEW.state = 'committed')",
    ),
}
"""What a session does in the transaction in whose COMMIT it is killed."""


def a_batch(world: World) -> None:
    """Run the job; somebody dies in it and is started again."""
    _start(world)
    world.run_to_the_end()


def a_recovery(world: World) -> None:
    """Recovery dies over what dead drivers left, as often as it is armed.

    For each death there is an application of each kind, so that none is in vain.
    """
    deaths = range(1 + len(world.scenario.after))
    applications = [f"{state}-{n}" for n in deaths for state in ("active", "decided")]
    source.write(world.folder, applications, 1, world.body)
    world.start_services()
    _leave_unfinished(world, applications)
    while world.deaths.left:
        world.recover()
    while oracle.open_work(world.places)[0]:
        world.check_time()
        world.recover()
    for application in world.drivers:
        world.start_driver(application, {})
    world.run_to_the_end()


def _leave_unfinished(world: World, applications: Sequence[str]) -> None:
    """Kill drivers: some had decided commit, some had not an hour ago."""
    for application in applications:
        active = application.startswith("active")
        point = "driver.after_votes" if active else "driver.after_decide"
        armed = variables(point, world.folder / f"left-{application}")
        world.start_driver(application, armed, behind=AN_HOUR if active else 0.0)
    for driver in world.drivers.values():
        driver.ends.append(driver.process.wait(max(world.time_left(), 1.0)))


def a_flush(world: World) -> None:
    """The victim dies in the flush of what it makes durable."""
    _die_in_flush(world)
    world.run_to_the_end()


def a_cut(world: World) -> None:
    """The driver dies in the flush of its decision, and not all of that is on disk."""
    log = Path(f"{sa.make_url(world.urls['log']).database}-wal")
    flushed = _die_in_flush(world, log)
    outside.cut(log, world.variant.time, flushed)
    world.run_to_the_end()


def _die_in_flush(world: World, log: Path | None = None) -> int:
    """Return the size of a file just before."""
    _up_to_the_gate(world)
    victim = world.process(world.variant.victim)
    with outside.killed_at_flush(victim.pid, world.folder / "strace.txt"):
        flushed = log.stat().st_size if log else 0
        world.open_gate()
        victim.wait(max(world.time_left(), 1.0))
    world.deaths.mark()
    return flushed


def a_session(world: World) -> None:
    """A session of the database is killed in its COMMIT, and the server restarts."""
    _up_to_the_gate(world)
    table, when = _COMMITS[world.scenario.point]
    with outside.killed_in_commit(world.urls[world.variant.victim], table, when):
        world.open_gate()
    world.deaths.mark()
    world.run_to_the_end()


def _up_to_the_gate(world: World) -> None:
    _start(world)
    world.await_gate()


def _start(world: World) -> None:
    source.write(world.folder, [APPLICATION], body=world.body)
    world.start_services()
    world.start_driver()


STORIES: dict[str, Callable[[World], None]] = {
    story.__name__: story for story in (a_batch, a_recovery, a_flush, a_cut, a_session)
}
