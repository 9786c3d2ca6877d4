"""A collector that is not there, refuses or hangs costs spans, and never work.

Where one hangs, it hangs until what is promised has happened, and an exporter's
patience is longer than `UNDELAYED`: whoever waited for it would be seen.
"""

import contextlib

import pytest
from backends import job
from support.exporting import AT_ITS_END, importable, to
from support.spark import held, serve_numbers
from support.telemetry import DEAD, TASK_TO_RUN, dead, program, run, started
from support.waiting import AT_ONCE, PATIENT, UNDELAYED

from tracing_2pc.store import open_log
from tracing_2pc.testing import Collector

pytestmark = pytest.mark.ci

FLUSH = 0.5
"""How long a task waits for its export at most, in seconds."""


@pytest.mark.parametrize("how", DEAD)
def test_a_job_does_not_notice(tmp_path, how):
    """Every batch is committed while nothing is exported, and then the job ends."""
    with contextlib.ExitStack() as stack, dead(how) as endpoint:
        urls = dict(zip("ab", serve_numbers(stack, tmp_path), strict=True))
        command = ["-m", "backends.job", str(tmp_path), "numbers", "3"]
        command += [f"{name}={url}" for name, url in urls.items()]
        first = importable(tmp_path / "first", AT_ITS_END)
        told = to(endpoint, TPC_TOKEN="none-is-needed", PYTHONPATH=first)
        with started(*command, **told) as running:
            assert running.said()["done"] == 3
            assert running.ended() < UNDELAYED
    for name in urls:
        assert sorted(held(tmp_path / f"{name}.db")) == job.values(3)
    with contextlib.closing(open_log(job.decisions(tmp_path))) as log:
        assert log.unfinished() == []


DRIVER = """
from opentelemetry import trace
from support.protocol import FakeClock, World
from tracing_2pc.testing import temporary_log
flushes = []
trace.get_tracer_provider().force_flush = lambda *_: flushes.append(1)
clock = FakeClock()
world = World(temporary_log(now=clock.now), clock)
for batch in range(20):
    world.run_batch(batch)
say([world.visible(), len(flushes), lifecycle.dropped()])
"""


def test_a_driver_waits_for_no_export():
    """A transaction's path has no flush in it, and a full queue holds nobody up."""
    with Collector() as collector:
        collector.hang()
        small = {"OTEL_BSP_MAX_QUEUE_SIZE": "4", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "1"}
        with program(AT_ITS_END + DRIVER, **to(collector.endpoint, **small)) as running:
            visible, flushes, dropped = running.said()
            collector.wait_for(lambda _: collector.connections)
            assert running.ended() < UNDELAYED
        assert collector.spans() == []
    assert (visible, flushes) == (80, 0)
    assert dropped > 0


TASKS = f"""{TASK_TO_RUN}
from tracing_2pc.tracing.sdk import flushing
call, waits = flushing.Bounded.call, []
def counted(*arguments):
    waits.append(1)
    return call(*arguments)
flushing.Bounded.call = counted
for attempt in range(2):
    receipt, seconds = timed(job.task, Rows(), record, 0, attempt)
    say([len(waits), seconds])
"""


@pytest.mark.parametrize("how", DEAD)
def test_a_task_waits_half_a_second_and_the_next_one_not_at_all(how):
    """Each returns its receipt while the exporter tries on; one wait per process."""
    with dead(how) as endpoint, program(AT_ITS_END + TASKS, **to(endpoint)) as running:
        waits, seconds = running.said()
        assert waits == 1
        assert FLUSH <= seconds < UNDELAYED
        waits, _ = running.said()
        assert waits == 1
        assert running.ended() < UNDELAYED


@pytest.mark.parametrize("how", DEAD)
def test_a_flush_ends_in_time(how):
    """It says that nothing was exported, at once where one has run out of time."""
    with dead(how) as endpoint:
        code = (
            f"made(); first = timed(lifecycle.flush, {AT_ONCE})\n"
            f"made(); say([first, timed(lifecycle.flush, {PATIENT})])"
        )
        said, seconds = run(AT_ITS_END + code, **to(endpoint))
    (first, waited), (second, again) = said
    assert (first, second) == (False, False)
    assert waited < UNDELAYED
    assert again < UNDELAYED
    assert seconds < UNDELAYED


@pytest.mark.parametrize("how", DEAD)
def test_what_is_lost_is_counted(how):
    """Each span that no export could deliver, once."""
    with dead(how) as endpoint:
        lost, _ = run(
            f"made(3); lifecycle.flush({PATIENT}); say(lifecycle.dropped())",
            **to(endpoint, patience=AT_ONCE),
        )
    assert lost == 3
