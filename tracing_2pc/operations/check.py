"""`tracing-2pc check`: what is not as it must be, and what mends it."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from tracing_2pc.core.errors import ConfigurationError, DecisionLogError, TwoPhaseError
from tracing_2pc.core.log_reader import (
    MOST,
    LogCondition,
    TransactionFilter,
    TransactionSummary,
)
from tracing_2pc.core.model import (
    ParticipantDescription,
    TransactionRecord,
    find_misdirected,
    way_back,
)
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import TransactionState
from tracing_2pc.inspection.survey import source_problems
from tracing_2pc.inspection.wording import SYNCHRONISE, format_duration
from tracing_2pc.operations.wiring import open_configured_log, open_participants
from tracing_2pc.protocol.fan_out import ask_at_once
from tracing_2pc.store.log.database import display_log
from tracing_2pc.tracing.sdk import lifecycle

SKEW: Final = 1.0
"""Seconds by which two clocks may differ: ages of branches are by the participant's."""

CURE_OF_LOG: Final = "start its database, or mend `log` in the settings"
"""What mends that the log cannot be reached."""

_FULL: Final = 0.8
"""Of the slots for prepared transactions; more in use is a problem."""

_DURABLE: Final[Mapping[str, frozenset[str]]] = {
    "journal_mode": frozenset({"wal"}),
    "synchronous": frozenset({"full", "extra"}),
    "fsync": frozenset({"on"}),
    "full_page_writes": frozenset({"on"}),
    "synchronous_commit": frozenset({"on", "local", "remote_write", "remote_apply"}),
}
"""What keeps a decision through a crash, by the name of a database's setting."""


class CheckProblem(NamedTuple):
    """What is wrong where, and what mends it."""

    where: str
    what: str
    cure: str


class ShownSetting(NamedTuple):
    """A setting, as it may be shown, and where it came from."""

    name: str
    value: str
    origin: str


@dataclasses.dataclass(frozen=True, slots=True)
class CheckResult:
    """What a check has participant.

    Args:
        log: what its database is like; None where it cannot be read.
        unfinished: transactions by state, bounded.
        participants: in the settings' order.
    """

    settings: tuple[ShownSetting, ...]
    log: LogCondition | None
    unfinished: Mapping[str, int]
    participants: tuple[ParticipantDescription, ...]
    problems: tuple[CheckProblem, ...]


def check(settings: Settings) -> CheckResult:
    """Read the log, and ask all participants at once; changes nothing.

    What is wrong is in the result; nothing is raised for it. Takes some request
    timeouts at most, beside what the log's database takes to connect.
    """
    problems: list[CheckProblem] = []
    if not settings.participants:
        what = "no participants: nobody can be told a decision from here"
        cure = 'add participants = {name = "http://…"} to tpc.toml'
        problems.append(CheckProblem("settings", what, cure))
    cure = "OpenTelemetry's variables are in the table of docs/settings.md"
    problems += (CheckProblem("environment", p, cure) for p in lifecycle.problems())
    condition, applications, unfinished = None, list[str](), list[TransactionSummary]()
    passed: list[TransactionRecord] = []
    try:
        condition, applications, unfinished, passed = _read_log(settings)
    except TwoPhaseError as error:
        problems.append(CheckProblem("log", str(error), _cure_of_log(error)))
    states = Counter(str(row.state) for row in unfinished)
    problems += _of_log(condition, states)
    problems += map(_of_passed, passed)
    by_id = {row.transaction: row for row in unfinished}
    sources = source_problems(by_id, settings.participants, settings, time.time())
    problems += (CheckProblem(str(source), *why) for source, why in sources.items())
    descriptions: list[ParticipantDescription] = []
    try:
        participants = open_participants(settings)
    except TwoPhaseError as error:
        problems.append(CheckProblem("settings", str(error), "mend it in tpc.toml"))
    else:
        descriptions += ask_at_once(lambda p: p.describe(), participants).values()
    for description in descriptions:
        name = description.participant
        whys = _of_participant(description, settings)
        problems += (CheckProblem(name, what, cure) for what, cure in whys)
    identities = {d.participant: d.identity for d in descriptions if d.identity}
    cure = "mend the addresses in `participants`: here, and where the job names them"
    for name, what in find_misdirected(identities, applications):
        problems.append(CheckProblem(name, what, cure))
    shown = tuple(
        ShownSetting(name, _text(name, getattr(settings, name)), settings.origin(name))
        for name in (field.name for field in dataclasses.fields(settings))
        if name != "origins"
    )
    return CheckResult(shown, condition, states, tuple(descriptions), tuple(problems))


def _text(name: str, value: Any) -> str:
    """Return a setting's value; never a secret that does not belong there."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={item}" for key, item in value.items()) or "none"
    if value is None:
        return "none"
    if name == "log":
        try:
            return display_log(value)
        except TwoPhaseError:
            return "(refused, not shown)"
    if name == "token":
        return value if value.startswith(("env:", "file:")) else "(a secret, not shown)"
    return _duration(value) if isinstance(value, float) else str(value)


def _duration(seconds: float) -> str:
    """Return a duration as it may be written in the settings."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds and not seconds % length:
            return f"{seconds / length:g}{unit}"
    return f"{seconds:g}s"


def _read_log(
    settings: Settings,
) -> tuple[LogCondition, list[str], list[TransactionSummary], list[TransactionRecord]]:
    unfinished = TransactionFilter(unfinished=True, limit=MOST)
    with open_configured_log(settings) as log:
        return (
            log.condition(),
            log.applications(),
            log.transactions(unfinished),
            log.passed(),
        )


def _cure_of_log(error: TwoPhaseError) -> str:
    if isinstance(error, ConfigurationError):
        return "mend `log` in the settings; for a new log only: run `tracing-2pc init`"
    if isinstance(error, DecisionLogError) and error.says_cure:
        return "do what it says"
    return CURE_OF_LOG


def _of_log(
    condition: LogCondition | None, states: Mapping[str, int]
) -> Iterator[CheckProblem]:
    for name, value in condition.durability.items() if condition else ():
        if value.lower() not in _DURABLE[name]:
            yield CheckProblem(
                "log",
                f"{name} is {value}: a crash may lose decisions",
                f"set {name} to {' or '.join(sorted(_DURABLE[name]))}",
            )
    if quarantined := states.get(str(TransactionState.QUARANTINED), 0):
        yield CheckProblem(
            "log",
            f"{quarantined} quarantined: their applications begin no batch",
            "`tracing-2pc ls --state quarantined`, then `tracing-2pc explain` each",
        )


def _of_passed(record: TransactionRecord) -> CheckProblem:
    what = f"{record.id} is lost: Spark has begun batch {record.passed_by} without it"
    return CheckProblem("log", what, way_back(record.id.batch))


def _of_participant(
    participant: ParticipantDescription, settings: Settings
) -> Iterator[tuple[str, str]]:
    """Yield what is wrong there, and what mends it."""
    if participant.unreachable is not None:
        cure = f"start it, or mend its address ({participant.url}) in the settings"
        yield participant.unreachable, cure
        return
    if participant.unready is not None:
        yield participant.unready, "start its database; see its own log"
    if participant.refused is not None:
        cure = "set `token` (TPC_TOKEN) to the operator's word in its tokens file"
        yield participant.refused, f"{cure}{export_of_token(settings)}"
    if participant.skew is not None and abs(participant.skew) > SKEW:
        ahead = "ahead of" if participant.skew > 0 else "behind"
        skew = format_duration(abs(participant.skew))
        yield (
            f"its clock is {skew} {ahead} this machine's: ages of what is in doubt are "
            "by its clock, ages on record by the log's, and diagnoses compare them",
            SYNCHRONISE,
        )
    if participant.missing is not None:
        yield f"its list {participant.missing}", "`tracing-2pc ls`; resolve orphans"
    if participant.only is not None:
        yield (
            f"its token is bound to {participant.only}: what others have prepared "
            "there is not seen from here",
            "a token without an application in its tokens file, if it is to be seen",
        )
    used = participant.gauges.get("tpc.prepared_slots.used")
    most = participant.gauges.get("tpc.prepared_slots.max")
    if used is not None and most is not None and used >= _FULL * most:
        yield (
            f"{used:.0f} of {most:.0f} prepared transactions are in use: without a "
            "free one it votes abort",
            "finish what is in doubt, or raise max_prepared_transactions",
        )


def export_of_token(settings: Settings) -> str:
    """Return a colon and the command that sets it; empty where it is set elsewhere."""
    if settings.origin("token") != "default":
        return ""
    file = settings.tokens_file or "tokens"
    return f": export TPC_TOKEN=$(sed -n 's/^operator //p' {file})"
