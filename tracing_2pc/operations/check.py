"""`tracing-2pc check`: what is not as it must be, and what mends it."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tracing_2pc.errors import ConfigurationError, TwoPhaseError
from tracing_2pc.operations.observation import (
    ADDRESS,
    NTP,
    START,
    awaited,
    own_sinks_of,
    set_back,
    without_address,
)
from tracing_2pc.operations.recover import configured_log, services_of
from tracing_2pc.protocol.diagnosis import lasting
from tracing_2pc.protocol.fan_out import ask_at_once
from tracing_2pc.settings import Settings
from tracing_2pc.states import TransactionState
from tracing_2pc.store.database import shown
from tracing_2pc.store.overview import MOST, Condition, Filters, Summary
from tracing_2pc.transports.probe import Probed, misdirected, probe

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


class Problem(NamedTuple):
    """What is wrong where, and what mends it."""

    where: str
    what: str
    cure: str


class Setting(NamedTuple):
    """A setting, as it may be shown, and where it came from."""

    name: str
    value: str
    origin: str


@dataclasses.dataclass(frozen=True, slots=True)
class Checked:
    """What a check has found.

    Args:
        settings: those in force.
        log: what its database is like; None where it cannot be read.
        unfinished: transactions by state, bounded.
        participants: in the settings' order.
        problems: each with its cure; empty where all is well.
    """

    settings: tuple[Setting, ...]
    log: Condition | None
    unfinished: Mapping[str, int]
    participants: tuple[Probed, ...]
    problems: tuple[Problem, ...]


def check(settings: Settings) -> Checked:
    """Read the log, and ask all participants at once; changes nothing.

    What is wrong is in the result; nothing is raised for it. Takes some request
    timeouts at most, beside what the log's database takes to connect.
    """
    problems = [*_of_settings(settings)]
    condition, unfinished, applications, of_log = _read_log(settings)
    problems += of_log
    probed = _probe(settings, problems)
    for one in probed:
        problems += _of_participant(one, settings)
    problems += _of_addresses(probed, applications)
    return Checked(
        tuple(_shown(settings)), condition, unfinished, tuple(probed), tuple(problems)
    )


# --- settings ------------------------------------------------------------------------


def _shown(settings: Settings) -> Iterator[Setting]:
    for field in dataclasses.fields(settings):
        if field.name != "origins":
            value = getattr(settings, field.name)
            text = _text(field.name, value)
            yield Setting(field.name, text, settings.origin(field.name))


def _text(name: str, value: Any) -> str:
    """Return a setting's value; never a secret that does not belong there."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={item}" for key, item in value.items()) or "none"
    if value is None:
        return "none"
    if name == "log":
        try:
            return shown(value)
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


def _of_settings(settings: Settings) -> Iterator[Problem]:
    if not settings.participants:
        yield Problem(
            "settings",
            "no participants: nobody can be told a decision from here",
            'add participants = {name = "http://…"} to tpc.toml',
        )


# --- the log -------------------------------------------------------------------------


def _read_log(
    settings: Settings,
) -> tuple[Condition | None, Mapping[str, int], list[str], list[Problem]]:
    try:
        with configured_log(settings) as log:
            overview, applications = log.overview, log.applications()
            condition = overview.condition()
            open_ = overview.transactions(Filters(unfinished=True, limit=MOST))
    except TwoPhaseError as error:
        return None, {}, [], [Problem("log", str(error), _cure_of_log(error))]
    states = Counter(str(one.state) for one in open_)
    problems = [*_of_condition(condition), *_of_states(states)]
    problems += _of_unfinished(open_, settings)
    return condition, states, applications, problems


def _cure_of_log(error: TwoPhaseError) -> str:
    if isinstance(error, ConfigurationError):
        return "mend `log` in the settings; for a new log only: run `tracing-2pc init`"
    return CURE_OF_LOG


def _of_condition(condition: Condition) -> Iterator[Problem]:
    for name, value in condition.durability.items():
        if value.lower() not in _DURABLE[name]:
            yield Problem(
                "log",
                f"{name} is {value}: a crash may lose decisions",
                f"set {name} to {' or '.join(sorted(_DURABLE[name]))}",
            )


def _of_states(states: Mapping[str, int]) -> Iterator[Problem]:
    if quarantined := states.get(str(TransactionState.QUARANTINED), 0):
        yield Problem(
            "log",
            f"{quarantined} quarantined: their applications begin no batch",
            "`tracing-2pc ls --state quarantined`, then `tracing-2pc explain` each",
        )


def _of_unfinished(waiting: Sequence[Summary], settings: Settings) -> Iterator[Problem]:
    now, safety = time.time(), settings.safety_interval
    if wrong := set_back(waiting, now, safety):
        yield Problem("log", wrong, NTP)
    found = without_address(waiting, settings.participants, now - safety)
    own = own_sinks_of(waiting)
    for name, ids in found.items():
        why, cure = "it has no address here", ADDRESS
        if name in own:
            why, cure = "it is a sink of the job's own", START
        yield Problem(name, f"{awaited(ids)}, and {why}", cure)


# --- participants --------------------------------------------------------------------


def _probe(settings: Settings, problems: list[Problem]) -> list[Probed]:
    try:
        known = services_of(settings)
    except TwoPhaseError as error:
        problems.append(Problem("settings", str(error), "mend it in tpc.toml"))
        return []
    return list(ask_at_once(probe, known).values())


def _of_participant(found: Probed, settings: Settings) -> Iterator[Problem]:
    name = found.participant
    if found.unreachable is not None:
        cure = f"start it, or mend its address ({found.url}) in the settings"
        yield Problem(name, found.unreachable, cure)
        return
    if found.unready is not None:
        yield Problem(name, found.unready, "start its database; see its own log")
    if found.refused is not None:
        yield Problem(name, found.refused, cure_of_token(settings))
    if found.skew is not None and abs(found.skew) > SKEW:
        ahead = "ahead of" if found.skew > 0 else "behind"
        yield Problem(
            name,
            f"its clock is {lasting(abs(found.skew))} {ahead} this machine's: ages of "
            "what is in doubt are by its clock, ages on record by the log's, and "
            "diagnoses compare them",
            NTP,
        )
    if found.missing is not None:
        yield Problem(
            name, f"its list {found.missing}", "`tracing-2pc ls`; resolve orphans"
        )
    if found.only is not None:
        yield Problem(
            name,
            f"its token is bound to {found.only}: what others have prepared there is "
            "not seen from here",
            "a token without an application in its tokens file, if it is to be seen",
        )
    yield from _of_slots(found)


def _of_addresses(
    probed: Sequence[Probed], applications: Sequence[str]
) -> Iterator[Problem]:
    identities = {one.participant: one.identity for one in probed if one.identity}
    cure = "mend the addresses in `participants`: here, and where the job names them"
    for name, why in misdirected(identities, applications):
        yield Problem(name, why, cure)


def cure_of_token(settings: Settings) -> str:
    """Say how a participant comes to know who asks it from here."""
    cure = "set `token` (TPC_TOKEN) to the operator's word in its tokens file"
    return f"{cure}{export_of_token(settings)}"


def export_of_token(settings: Settings) -> str:
    """Return a colon and the command that sets it; empty where it is set elsewhere."""
    if settings.origin("token") != "default":
        return ""
    file = settings.tokens_file or "tokens"
    return f": export TPC_TOKEN=$(sed -n 's/^operator //p' {file})"


def _of_slots(found: Probed) -> Iterator[Problem]:
    used = found.gauges.get("tpc_prepared_slots_used")
    most = found.gauges.get("tpc_prepared_slots_max")
    if used is not None and most is not None and used >= _FULL * most:
        yield Problem(
            found.participant,
            f"{used:.0f} of {most:.0f} prepared transactions are in use: without a "
            "free one it votes abort",
            "finish what is in doubt, or raise max_prepared_transactions",
        )
