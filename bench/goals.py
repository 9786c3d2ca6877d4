"""Every goal: what is compared with what, in the words of the page of results."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from bench import backends, deco, ingest, kafka, micro_batches, rejects


@dataclasses.dataclass(frozen=True, slots=True)
class Goal:
    """A ratio of what `library` and `base` cost, and the most that it may be."""

    family: str
    library: str
    base: str
    limit: float


_BY_HAND: Final = "a span made by hand"
_DECO: Final = {
    "A1": ("`pre_commit` of a decorated sink", f"{_BY_HAND}, its attribute"),
    "A2": ("`commit` of a handle that was read from the log", _BY_HAND),
    "A3": ("`pre_commit` of a decorated sink", "a span that is never current"),
    "A4": ("`commit_transaction`", f"{_BY_HAND}, and the id of the argument"),
    "A5": ("`invoke`, tracing off", "a method that passes the call on"),
    "A6": ("`pre_commit`, nothing is sampled", f"{_BY_HAND}, nothing is sampled"),
    "A7": ("`pre_commit`, a provider that does nothing", f"{_BY_HAND}, the same"),
}
_BACKENDS: Final = {
    "A8": ("nine spans for SkyWalking and OTLP", "the same spans for OTLP"),
    "A8-headers": ("the same, with headers of both in and out", "OTLP alone"),
    "A8-process": ("the same, converted and sent", "OTLP alone"),
}
_PRODUCER: Final = "an idempotent producer in each executor, at least once"
_KAFKA: Final = {
    "K1": ("a batch of 10,000 rows for Kafka, exactly once, committed", _PRODUCER),
    "K2": ("the same, until a reader of what is committed has all", _PRODUCER),
}
_INGEST: Final = {
    "E1": (
        "a request of 1,000 events to a gateway, on PostgreSQL",
        "to a gateway by hand: Flask, `INSERT … ON CONFLICT DO NOTHING`, a commit each",
    ),
    "E2": (
        "single events from 32 clients at once",
        "the same requests to the gateway by hand",
    ),
}
_SINKS: Final = {
    "library": "a batch to two PostgreSQL servers, exactly once",
    "embedded": "a batch to two PostgreSQL servers without services, exactly once",
    "jdbc": "two appends of Spark's JDBC sink, at least once",
    "copy": "`COPY` by hand to both servers, at least once",
    "parquet": "an append to a folder of Parquet files",
}

_REJECTING: Final = (
    "a batch of 10,000 rows to two tables, a row of which is rejected for"
)
_REJECTS: Final = {
    "R1": (
        "a batch of 10,000 rows to two services, with `rejects`; none is refused",
        "the same without `rejects`",
    ),
    "R2": (f"{_REJECTING} its value", "the same rows, and none is refused"),
    "R3": (f"{_REJECTING} a `CHECK`", "the same rows, and none is refused"),
    "R4": (f"{_REJECTING} a `UNIQUE`", "the same rows, and none is refused"),
    "R5": (f"{_REJECTING} a foreign key", "the same rows, and none is refused"),
}

_LOOKED_AT: Final = (
    "10,000,000 finished and 10,000 unfinished ones in the log on PostgreSQL"
)
_TWO: Final = ("two seconds of CPU time", 1.0)


def _batches() -> Mapping[str, Goal]:
    return {
        f"{name} {rows}": Goal(
            "micro-batches", f"{_SINKS[ours]}, {rows:,} rows", _SINKS[base], limit
        )
        for (name, rows), (ours, base, limit) in micro_batches.LIMITS.items()
    }


GOALS: Final[Mapping[str, Goal]] = {
    **{n: Goal("deco", *arms, deco.LIMITS[n]) for n, arms in _DECO.items()},
    **{n: Goal("backends", *arms, backends.LIMITS[n]) for n, arms in _BACKENDS.items()},
    **_batches(),
    **{n: Goal("kafka", *arms, kafka.LIMITS[n]) for n, arms in _KAFKA.items()},
    **{n: Goal("rejects", *arms, rejects.LIMITS[n][2]) for n, arms in _REJECTS.items()},
    **{n: Goal("ingest", *arms, ingest.LIMITS[n]) for n, arms in _INGEST.items()},
    "I10-wall": Goal(
        "growth",
        "time of a batch of 10 rows to four participants, each 20 ms away",
        "to one participant, 20 ms away",
        1.15,
    ),
    "I10-cpu": Goal(
        "growth",
        "CPU time of the driver for 100,000 rows to four participants",
        "to one participant",
        1.30,
    ),
    "I11-participant": Goal(
        "growth",
        "peak memory of a participant that gets 5,000,000 rows",
        "that gets 50,000 rows",
        1.20,
    ),
    "I11-writer": Goal(
        "growth",
        "peak memory of a process that writes 5,000,000 rows",
        "that writes 50,000 rows",
        1.20,
    ),
    "I12-postgresql": Goal(
        "growth",
        "an empty batch, 10,000,000 finished ones in the log on PostgreSQL",
        "an empty batch, an empty log",
        1.05,
    ),
    "I12-sqlite": Goal(
        "growth",
        "an empty batch, 10,000,000 finished ones in the log on SQLite",
        "an empty batch, an empty log",
        1.05,
    ),
    "I12-ls": Goal("growth", f"CPU time of `tracing-2pc ls`, {_LOOKED_AT}", *_TWO),
    "I12-explain": Goal(
        "growth", f"CPU time of `tracing-2pc explain`, {_LOOKED_AT}", *_TWO
    ),
    "I12-sweep": Goal("growth", f"CPU time of a watcher's sweep, {_LOOKED_AT}", *_TWO),
    "I12-view": Goal(
        "growth",
        "a query of a ledger's view of 100,000 rows after 10,000,000 transactions, of "
        "which its journal keeps 60,480",
        "the same, an empty journal",
        1.05,
    ),
}

FAMILIES: Final = (
    *("deco", "backends", "micro-batches"),
    *("rejects", "kafka", "ingest", "growth", "peers"),
)
"""The commands that measure everything, in turn; `peers` has no goal."""
