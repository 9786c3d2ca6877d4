"""The state of an application's job, by its drivers' reports to the log. Pure.

Only a driver of `foreachBatch` reports. An application without a report has no `Job`,
and nothing is known of it.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Iterable
from typing import Final

from tracing_2pc.core.log_reader import Presence
from tracing_2pc.core.states import Word
from tracing_2pc.inspection.wording import format_duration, format_time_of_day

UNSEEN: Final = 30.0
"""Seconds without a report from which a driver counts as gone: it reports each ten."""

MISSED: Final = 120.0
"""Seconds from which that is critical: a start after a crash takes less."""


class JobState(Word):
    """The state of a job."""

    RUNNING = "running"
    STOPPED = "stopped"
    GONE = "gone"
    FAILED = "failed"


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """An application's job, by the reports of its newest run."""

    application: str
    state: JobState
    age: float  # seconds since its driver was seen, or since the job ended
    newest: Presence
    # Drivers of earlier runs that were seen after the newest one began.
    others: tuple[Presence, ...] = ()

    @property
    def is_down(self) -> bool:
        """Whether it has ended, and no person has ended it."""
        return self.state in (JobState.GONE, JobState.FAILED)

    def describe(self, now: float) -> str:
        """Describe its state in a clause; `now` is in Unix seconds by our clock."""
        driver = describe_driver(self.newest)
        if self.state is JobState.FAILED:
            ended = format_time_of_day(now - self.age, now)
            return f"its job failed at {ended}: {(self.newest.error or '').rstrip('.')}"
        if self.state is JobState.STOPPED:
            return f"its job was stopped {format_duration(self.age)} ago"
        last = "last " if self.state is JobState.GONE else ""
        return f"its driver, {driver}, was {last}seen {format_duration(self.age)} ago"


def describe_driver(presence: Presence) -> str:
    """Return a driver's process and host."""
    return f"process {presence.process} on {presence.host}"


def jobs_of(presences: Iterable[Presence], clock: float) -> dict[str, Job]:
    """Return the job of each application; `clock` is the log's time."""
    # One from before a clock was set back proves nothing of now.
    known = (p for p in presences if max(p.since, p.seen) <= clock + UNSEEN)
    by_name = sorted(known, key=lambda p: (p.application, p.since))
    grouped = itertools.groupby(by_name, key=operator.attrgetter("application"))
    return {name: _job(list(runs), clock) for name, runs in grouped}


def _job(runs: list[Presence], clock: float) -> Job:
    *earlier, newest = runs
    # One that was killed just before the newest run began is not there any more.
    seen_since = max(newest.since, clock - UNSEEN)
    others = (p for p in earlier if p.ended is None and p.seen > seen_since)
    state, since = JobState.RUNNING, newest.seen
    if newest.ended is not None:
        state, since = JobState.STOPPED, newest.ended
        if newest.failed:
            state = JobState.FAILED
    elif clock - newest.seen >= UNSEEN:
        state = JobState.GONE
    age = max(0.0, clock - since)
    return Job(newest.application, state, age, newest, tuple(others))
