"""Every series of growth: what is along its axes, in the words of the page."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from bench.goals import GOALS


@dataclasses.dataclass(frozen=True, slots=True)
class Series:
    """Ratios over something that grows.

    Args:
        title: heading of its table and plot.
        text: how it is measured, and what a ratio is.
        x: what grows.
        y: what the ratio is of.
        goal: the goal whose limit the plot shows, if there is one.
        log: the plot's steps are factors, not differences.
    """

    title: str
    text: str
    x: str
    y: str
    goal: str | None = None
    log: bool = False

    @property
    def limit(self) -> float | None:
        """The limit of its goal."""
        return GOALS[self.goal].limit if self.goal else None


_LOG: Final = (
    "One empty batch of a coordinator without Spark, with a decision log that already "
    "holds so many finished transactions of the same application. A ratio is the time "
    "of a batch, divided by the time with an empty log in the same round."
)

SERIES: Final[Mapping[str, Series]] = {
    "rows": Series(
        "Rows of a batch",
        "A batch of real Spark to two PostgreSQL servers, beside two appends of its "
        "JDBC sink. In the plot 1 is the library's batch of the fewest rows. Sizes are "
        "measured one after another, so a step from one size to the next is less "
        "certain than the ratio at one size, which is of batches that took turns. The "
        "points below are beside a batch that is persisted, the slower of two ways.",
        "rows of a batch",
        "times the smallest batch",
        log=True,
    ),
    "partitions": Series(
        "Partitions of a batch",
        "A batch of 100,000 rows that executors write (`driver_path_bytes=0`), beside "
        "two appends of the JDBC sink: on two cores, each partition a file. Every "
        "partition is a branch at both participants. By itself the library hands a "
        "batch of this size to the driver, which writes one branch. In the plot 1 is "
        "the library's batch on one partition. Here, too, the batch of the JDBC sink "
        "is persisted.",
        "partitions of a batch",
        "times one partition",
        log=True,
    ),
    "partitions-socket": Series(
        "Partitions of a batch, with Unix domain sockets",
        "The same with `spark.python.unix.domain.socket.enabled=true`, which Spark has "
        "since 4.1: no task waits for its first row. Where two cores are busy all the "
        "same, as here, that is hard to see.",
        "partitions of a batch",
        "times one partition",
        log=True,
    ),
    "participants-wall": Series(
        "Participants: time",
        "A batch of 10 rows by a coordinator without Spark; each participant is a "
        "process, and each request to it arrives 20 ms late. A ratio is the time of a "
        "batch, divided by the time with one participant in the same round.",
        "participants",
        "times one participant",
        "I10-wall",
    ),
    "participants-cpu": Series(
        "Participants: the driver's CPU time",
        "The same coordinator, large batches and no delay: CPU time of its process, "
        "divided by that with one participant in the same round. Each participant gets "
        "all rows.\n\nMeasured apart, by 8 rounds of 100,000 rows in which the ways to "
        "send took turns: blocks of 256 KiB instead of 16 KiB took 13 % off the CPU "
        "time with four participants, and nothing off that with one; the ratio went "
        "from 2.23 to 1.93. Blocks of 1 MiB, or of 256 KiB without a copy, took off "
        "another 3 to 4 %, too little for 8 rounds to prove; they are not used.",
        "participants",
        "times one participant",
        "I10-cpu",
    ),
    "finished-postgresql": Series(
        "Finished transactions in the log: PostgreSQL",
        _LOG,
        "finished transactions in the log",
        "times an empty log",
        "I12-postgresql",
    ),
    "finished-sqlite": Series(
        "Finished transactions in the log: SQLite",
        _LOG,
        "finished transactions in the log",
        "times an empty log",
        "I12-sqlite",
    ),
    "applications": Series(
        "Applications on one log",
        "So many processes, each with an application of its own, apply empty batches "
        "at the same time with one log on PostgreSQL. A ratio is their transactions "
        "per second together, divided by those of one in the same round. The "
        "processes and the server share the cores of this machine.",
        "applications",
        "times one application",
    ),
}
