"""The table: each point, who dies there, and how it is reached."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from crash.kinds import KINDS, SERVED
from crash.roles import AFTER_TASKS, BEFORE_TASKS
from tracing_2pc.core.names import FAILPOINTS

_ELSEWHERE = ("relay.", "inbox.", "launch.", "delta.", "iceberg.")

HERE = {p: None for p in FAILPOINTS if not p.startswith(_ELSEWHERE)}.keys()
"""Failpoints of a job; `brokers/` kills relays, `test_gateway_killed.py` inboxes,
`launch/` launches, `test_delta_s3.py` and `test_iceberg_sink.py` who writes to a
lake."""

OUTSIDE = {
    "log.in_commit": "SQLite: the driver dies in the flush of its decision",
    "log.half_record": "SQLite: and of that decision only some bytes were written",
    "sqlite.in_prepare": "the ledger dies in the flush of a prepare",
    "sqlite.in_commit": "the ledger dies in the flush of a commit",
    "postgresql.in_decide": "the log's session is killed in the decision's COMMIT",
    "postgresql.in_prepare": "the ledger's session is killed in a prepare's COMMIT",
    "postgresql.in_commit": "the ledger's session is killed in a commit's COMMIT",
}
"""Points inside a database, where there is no line of ours: reached from outside."""


@dataclasses.dataclass(frozen=True, slots=True)
class Variant:
    """What differs from one run of a scenario to the next."""

    kind: str
    victim: str
    time: int


@dataclasses.dataclass(frozen=True, slots=True)
class Scenario:
    """One way to die at a point.

    Args:
        point: its name.
        victims: who dies, in turn.
        times: which time it is reached, in turn; or, of a cut, the bytes cut off.
        story: how it is reached: a function of that name in `stories`.
        after: where the victim's next lives end; the life after these is left alone.
        ends: exit codes of the driver's lives, where only one course is right.
        attempts: at the middle batch, where only one number is right.
        gate: where the driver waits while something is done from outside.
        retries: a lost task is started again within the batch.
        raises: one task raises, once.
        takes_driver: an executor's failpoint kills the driver.
        files: a folder of files is a third participant.
        rejects: the ledger refuses some rows, for which there is a table.
        kinds: of participants, in turn.
    """

    point: str
    victims: tuple[str, ...]
    times: tuple[int, ...]
    story: str = "a_batch"
    after: tuple[str, ...] = ()
    ends: tuple[int, ...] | None = None
    attempts: int | None = None
    gate: str = ""
    retries: bool = False
    raises: bool = False
    takes_driver: bool = False
    files: bool = False
    rejects: bool = False
    kinds: tuple[str, ...] = tuple(KINDS)

    def variants(self, runs: int, first: int = 0) -> list[Variant]:
        """Return what is varied in so many runs, from a variant on."""
        order = itertools.product(self.times, self.victims, self.kinds)
        every = [Variant(kind, victim, time) for time, victim, kind in order]
        start = first % len(every)
        return list(itertools.islice(itertools.cycle(every), start, start + runs))


DRIVER, EXECUTOR, RECOVERY = ("driver",), ("executor",), ("recovery",)
PARTICIPANTS = ("ledger", "notifier")
MIDDLE = (2, 1, 3)
"""Once a batch: in the second of three, the first, the last."""
KILLED, REPLACED, UNHARMED = (-9, 0), (1, 0), (0,)
"""How the driver's lives end."""


def _driver(name: str, times: tuple[int, ...] = MIDDLE) -> Scenario:
    return Scenario(f"driver.{name}", DRIVER, times, ends=KILLED)


def _delivery(name: str, times: tuple[int, ...] = MIDDLE) -> list[Scenario]:
    point = f"delivery.{name}"
    return [
        Scenario(point, DRIVER, times, ends=KILLED),
        Scenario(point, RECOVERY, (1, 2), story="a_recovery"),
    ]


def _executor(name: str, times: tuple[int, ...] = MIDDLE) -> list[Scenario]:
    point = f"executor.{name}"
    return [
        Scenario(point, EXECUTOR, times, ends=REPLACED),
        Scenario(point, EXECUTOR, times, ends=UNHARMED, retries=True),
    ]


def _recovery(name: str) -> list[Scenario]:
    point = f"recovery.{name}"
    return [
        Scenario(point, RECOVERY, (1,), story="a_recovery"),
        Scenario(point, RECOVERY, (1,), story="a_recovery", after=(point, point)),
    ]


def _participant(
    name: str, times: tuple[int, ...], after: tuple[str, ...] = ()
) -> Scenario:
    point = f"participant.{name}"
    return Scenario(
        point, PARTICIPANTS, times, after=after, ends=UNHARMED, kinds=SERVED
    )


def _aborting(name: str) -> Scenario:
    point = f"participant.{name}"
    return Scenario(
        point, PARTICIPANTS, (1, 2), ends=REPLACED, raises=True, kinds=SERVED
    )


def _embedded() -> list[Scenario]:
    """Whoever asks a participant without a service dies at its points."""
    without = {"kinds": ("embedded",)}

    def at(name: str, *about: Any, **more: Any) -> Scenario:
        return Scenario(f"participant.{name}", *about, **without, **more)

    return [
        at("at_open", DRIVER, (1,), ends=KILLED),
        *(
            scenario
            for name in ("before_prepare", "after_prepare")
            for scenario in (
                at(name, EXECUTOR, MIDDLE, ends=REPLACED),
                at(name, EXECUTOR, MIDDLE, ends=UNHARMED, retries=True),
                at(name, EXECUTOR, MIDDLE, ends=KILLED, takes_driver=True),
            )
        ),
        *(
            scenario
            for name in ("before_commit", "between_branches", "after_commit")
            for scenario in (
                at(name, DRIVER, MIDDLE, ends=KILLED),
                at(name, RECOVERY, (1,), story="a_recovery"),
            )
        ),
        at("before_abort", DRIVER, (1,), ends=KILLED, raises=True),
        at("after_abort", DRIVER, (1,), ends=KILLED, raises=True),
        at("before_abort", RECOVERY, (1,), story="a_recovery"),
        at("after_abort", RECOVERY, (1,), story="a_recovery"),
    ]


def _rejects(name: str) -> list[Scenario]:
    point = f"rejects.{name}"
    lives: list[dict[str, Any]] = [
        {"ends": REPLACED},
        {"ends": UNHARMED, "retries": True},
        {"ends": KILLED, "takes_driver": True},
    ]
    return [Scenario(point, EXECUTOR, MIDDLE, rejects=True, **how) for how in lives]


def _files(name: str, times: tuple[int, ...] = MIDDLE) -> Scenario:
    return Scenario(f"files.{name}", DRIVER, times, ends=KILLED, files=True)


def _outside(
    name: str,
    victim: str,
    gate: str,
    story: str,
    *,
    times: tuple[int, ...] = (1,),
    ends: tuple[int, ...] = UNHARMED,
    attempts: int = 1,
) -> Scenario:
    return Scenario(
        name,
        (victim,),
        times,
        story,
        ends=ends,
        attempts=attempts,
        gate=gate,
        kinds=("sqlite",),
    )


def _session(name: str, victim: str, gate: str) -> Scenario:
    """The server is away for a while: a driver may wait for it, or give up."""
    return Scenario(
        name, (victim,), (1,), "a_session", gate=gate, kinds=("postgresql",)
    )


_TABLE: tuple[Scenario, ...] = (
    _driver("before_recovery"),
    Scenario(
        "driver.before_recovery",
        DRIVER,
        (2,),
        after=("driver.after_decide", "delivery.between_commits"),
        ends=(-9, -9, -9, 0),
    ),
    _driver("before_begin"),
    _driver("after_begin"),
    _driver("before_tasks"),
    _driver("during_collection", (3, 4, 1)),
    _driver("after_votes"),
    _driver("before_decide"),
    _driver("after_decide"),
    _driver("after_finish"),
    *_delivery("between_commits", (3, 1, 4)),
    *_delivery("before_commit", (4, 3, 1)),
    *_delivery("before_finish"),
    *_recovery("before_read"),
    *_recovery("after_read"),
    *_recovery("after_expire"),
    *_recovery("between_transactions"),
    *_executor("before_begin"),
    *_executor("mid_invoke", (3, 4, 1)),
    *_executor("before_pre_commit"),
    *_executor("after_first_prepare"),
    Scenario(
        "executor.after_first_prepare",
        EXECUTOR,
        MIDDLE,
        ends=KILLED,
        takes_driver=True,
    ),
    *_executor("after_pre_commit"),
    _participant("at_open", (1,)),
    _participant("before_commit", (2, 1, 3), after=("participant.at_open",)),
    _participant("before_prepare", (3, 4, 1)),
    _participant("after_prepare", (3, 4, 1)),
    _participant("before_commit", MIDDLE),
    _participant("after_commit", MIDDLE),
    Scenario(
        "participant.between_branches",
        ("ledger",),
        MIDDLE,
        ends=UNHARMED,
        kinds=("prepared",),
    ),
    _aborting("before_abort"),
    _aborting("after_abort"),
    *_embedded(),
    *_rejects("after_refusal"),
    *_rejects("before_rewrite"),
    *_rejects("before_keeping"),
    *_rejects("after_keeping"),
    Scenario("outbox.before_call", ("notifier",), (9, 1, 24), ends=UNHARMED),
    Scenario("outbox.after_call", ("notifier",), (9, 1, 24), ends=UNHARMED),
    _outside("log.in_commit", "driver", AFTER_TASKS, "a_flush", ends=KILLED),
    _outside(
        "log.half_record",
        "driver",
        AFTER_TASKS,
        "a_cut",
        times=(1, 2000, 4120),
        ends=KILLED,
        attempts=2,
    ),
    _outside("sqlite.in_prepare", "ledger", BEFORE_TASKS, "a_flush"),
    _outside("sqlite.in_commit", "ledger", AFTER_TASKS, "a_flush"),
    _session("postgresql.in_decide", "log", AFTER_TASKS),
    _session("postgresql.in_prepare", "ledger", BEFORE_TASKS),
    _session("postgresql.in_commit", "ledger", AFTER_TASKS),
    *(
        dataclasses.replace(scenario, point="files.after_write", files=True)
        for scenario in _executor("before_pre_commit")
    ),
    _files("between_renames", (3, 1, 4)),
    _files("before_manifest"),
    _files("after_manifest"),
    Scenario("files.before_abort", DRIVER, (1,), ends=KILLED, raises=True, files=True),
    Scenario("delivery.before_commit", DRIVER, (4, 5, 6), ends=KILLED, files=True),
    Scenario("delivery.between_commits", DRIVER, (4, 5, 2), ends=KILLED, files=True),
)


def _turned(scenario: Scenario, places: int) -> Scenario:
    """Let a scenario begin with another kind than the one before it."""
    kinds, first = scenario.kinds, places % len(scenario.kinds)
    return dataclasses.replace(scenario, kinds=kinds[first:] + kinds[:first])


SCENARIOS = tuple(_turned(one, places) for places, one in enumerate(_TABLE))
"""So that few runs meet every kind."""
