"""One round of looking: lists, the log, a pause, the lists again."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Protocol

from tracing_2pc.errors import ConfigurationError, DecisionLogError, TwoPhaseError
from tracing_2pc.interfaces import Clock
from tracing_2pc.model import (
    DeliveryRecord,
    Listing,
    Shown,
    TransactionId,
    TransactionRecord,
)
from tracing_2pc.operations.recover import services_of
from tracing_2pc.protocol.diagnosis import lasting
from tracing_2pc.protocol.evidence import Evidence, Lists, Logged
from tracing_2pc.protocol.fan_out import ask_at_once
from tracing_2pc.settings import Settings
from tracing_2pc.states import FINAL, ParticipantState
from tracing_2pc.store import SqlDecisionLog
from tracing_2pc.store.overview import Summary

LOG: Final = "log"
"""Name of the decision log beside participants' names, in a sweep and in metrics."""

BEYOND: Final = " beyond "
"""Between a participant's name and the one application that our token is bound to."""

CLOCK: Final = "the clock"
"""Beside those, where the log is ahead of our clock; no participant has such a name."""

ADDRESS: Final = "add it to `participants` in tpc.toml"
"""What mends that a participant has no address here."""

START: Final = "start the job, which finishes this first"
"""What mends that a sink of the job's own is waited for."""

NTP: Final = "Synchronise the clocks (NTP)"
"""What mends a clock."""

SHOWN: Final = 100
"""Transactions that participants are asked about in one round, the oldest first."""


class Observed(Protocol):
    """A participant, as somebody sees it who only looks."""

    @property
    def name(self) -> str:
        """Its configured name."""

    def prepared(self, application: str | None = None) -> Listing:
        """List what is in doubt there."""

    def show(self, transaction: TransactionId) -> Shown:
        """Return what it says of one transaction."""


def reachable(settings: Settings) -> Mapping[str, Observed]:
    """Return the participants that the settings have an address of.

    Raises:
        ConfigurationError: one is called as the log is.
    """
    if LOG in settings.participants:
        raise ConfigurationError(
            f"participant {LOG!r}: the watcher calls the decision log so. Give it "
            "another name in `participants` before it takes part in anything"
        )
    return services_of(settings)


@dataclasses.dataclass(frozen=True)
class Observation:
    """What one round has brought.

    Args:
        evidence: for the diagnosis.
        unreadable: participants without an address or a whole list, *log*, or *log
            of* an application with a record that cannot be trusted, *name beyond* the
            one application that our token is bound to, *the clock*; and why.
    """

    evidence: Evidence
    unreadable: Mapping[str, str]


def observe(
    log: SqlDecisionLog,
    participants: Mapping[str, Observed],
    settings: Settings,
    clock: Clock,
    pause: Callable[[float], object],
) -> Observation:
    """Look once around. One that cannot be read stops no other, and says nothing.

    A look at all participants takes little more than the request timeout. Reads what
    is unfinished or prepared, never the rest of the log.

    Args:
        log: the decision log.
        participants: those that can be reached.
        settings: `pause`, `safety_interval`.
        clock: for the log's times.
        pause: waits so many seconds, or less when it is being stopped.
    """
    unreadable: dict[str, str] = {}
    first = list_all(participants, unreadable)
    try:
        logged = read_log(log, first, unreadable)
    except DecisionLogError as error:
        unreadable[LOG] = str(error)
        logged = None
    pause(settings.pause)
    second = list_all(participants, unreadable)
    shown: dict[TransactionId, dict[str, Shown]] = {}
    if logged is not None:
        before = clock.now() - settings.safety_interval
        unreadable |= _doubts(logged, participants, settings, clock.now())
        asked = worth_asking(logged, before, clock.now())
        shown = show_all(log, participants, asked, settings, unreadable, second)
    evidence = Evidence(
        clock.now(), settings.safety_interval, first, logged, second, shown
    )
    return Observation(evidence, unreadable)


def observe_log(
    log: SqlDecisionLog,
    participants: Collection[str],
    settings: Settings,
    clock: Clock,
) -> Observation:
    """Look at the log alone: what it proves holds, whatever participants will say.

    Raises:
        DecisionLogError: the log cannot be read.
    """
    unreadable: dict[str, str] = {}
    logged, safety = read_log(log, {}, unreadable), settings.safety_interval
    unreadable |= _doubts(logged, participants, settings, clock.now())
    return Observation(Evidence(clock.now(), safety, {}, logged, {}, {}), unreadable)


def list_all(participants: Mapping[str, Observed], unreadable: dict[str, str]) -> Lists:
    """Ask all for their lists at once; note those that could not be read, or whole."""

    def ask(participant: Observed) -> Listing | None:
        try:
            listing = participant.prepared()
        except TwoPhaseError as error:
            unreadable[participant.name] = str(error)
            return None
        if listing.missing is not None:
            unreadable[participant.name] = f"its list {listing.missing}"
        if listing.only is not None:
            unreadable[participant.name + BEYOND + listing.only] = (
                f"the token is bound to {listing.only}: nothing else is listed there"
            )
        return listing

    return ask_at_once(ask, participants)


def read_log(log: SqlDecisionLog, lists: Lists, unreadable: dict[str, str]) -> Logged:
    """Read what is unfinished, and the state of what participants have named.

    An application with a record that cannot be trusted is noted as unreadable.

    Raises:
        DecisionLogError: the log cannot be read.
    """
    records: dict[TransactionId, TransactionRecord] = {}
    refused: set[str] = set()
    for application in log.unfinished_applications():
        try:
            records |= {record.id: record for record in log.unfinished(application)}
        except DecisionLogError as error:
            if error.transaction_id is None:
                raise
            refused.add(application)
            unreadable[f"{LOG} of {application}"] = str(error)
    named = {
        one.transaction
        for listing in lists.values()
        if listing is not None
        for one in listing.branches
    }
    overview = log.overview
    deliveries = overview.deliveries_of_unfinished()
    standing = overview.standing(sorted(named - records.keys()))
    # On record, unfinished, and not read above: somebody is at it.
    refused |= {t.application for t, s in standing.items() if s not in FINAL}
    return Logged(
        records,
        {record: _of(deliveries, record) for record in records},
        {t: state for t, state in standing.items() if state in FINAL},
        overview.watermarks(),
        overview.clock(),
        frozenset(refused),
    )


def _of(
    deliveries: Mapping[str, dict[str, DeliveryRecord]], transaction: TransactionId
) -> dict[str, DeliveryRecord]:
    return deliveries.get(str(transaction), {})


def without_address(
    waiting: Iterable[TransactionRecord | Summary],
    known: Collection[str],
    before: float,
) -> dict[str, list[TransactionId]]:
    """Return who is waited for without having an address here, and by what.

    A sink of a job's own never has one, and its driver may be at it: it is named once
    the decision is older than `before`, and where others have an address.
    """
    found: dict[str, list[TransactionId]] = {}
    for one in waiting:
        if known and one.decided is not None and one.decided <= before:
            for name in one.pending:
                if name not in known:
                    found.setdefault(name, []).append(_id_of(one))
    return found


def _id_of(one: TransactionRecord | Summary) -> TransactionId:
    return one.id if isinstance(one, TransactionRecord) else one.transaction


def awaited(by: list[TransactionId]) -> str:
    """Say what waits for somebody."""
    more = len(by) - 1
    return f"{by[0]} and {more} more wait for it" if more else f"{by[0]} waits for it"


def own_sinks_of(waiting: Iterable[TransactionRecord | Summary]) -> set[str]:
    """Name those that only the job can reach."""
    return {name for one in waiting for name in one.own_sinks}


def nowhere(waiting: list[TransactionId], *, own_sink: bool) -> str:
    """Say what waits for somebody without an address, and what mends it."""
    if own_sink:
        return f"it is a sink of the job's own, and {awaited(waiting)}: {START}"
    return f"it has no address here, and {awaited(waiting)}: {ADDRESS}"


def _doubts(
    logged: Logged, known: Collection[str], settings: Settings, now: float
) -> dict[str, str]:
    """Say who cannot be asked though the log waits for them, and of a wrong clock."""
    safety = settings.safety_interval
    found = without_address(logged.records.values(), known, now - safety)
    own = own_sinks_of(logged.records.values())
    nobody = {n: nowhere(waiting, own_sink=n in own) for n, waiting in found.items()}
    wrong = set_back(logged.records.values(), now, safety)
    return nobody if wrong is None else nobody | {CLOCK: f"{wrong}. {NTP}"}


def set_back(
    waiting: Iterable[TransactionRecord | Summary], now: float, tolerance: float
) -> str | None:
    """Say that the log is ahead of our clock: what it tells looks too young."""
    steps = {_id_of(one): max(one.started, one.decided or 0.0) for one in waiting}
    last = max(steps, key=lambda id_: steps[id_], default=None)
    if last is None or steps[last] <= now + tolerance:
        return None
    return (
        f"the last step of {last} is {lasting(steps[last] - now)} ahead of this "
        "machine's clock: it was set back, or a driver's is wrong; until it has caught "
        "up, what is younger than that is not spoken of"
    )


def worth_asking(logged: Logged, before: float, now: float) -> list[TransactionRecord]:
    """Return what is decided, unfinished and not too young; oldest first, bounded.

    What was decided in the future may be old: the clock was set back.
    """
    decided = [
        record
        for record in logged.records.values()
        if record.decided is not None and not before < record.decided <= now
    ]
    return sorted(decided, key=lambda record: record.started)[:SHOWN]


def show_all(
    log: SqlDecisionLog,
    participants: Mapping[str, Observed],
    records: Iterable[TransactionRecord],
    settings: Settings,
    unreadable: dict[str, str],
    lists: Lists,
) -> dict[TransactionId, dict[str, Shown]]:
    """Ask each participant about what it takes part in; keep what is answered.

    What our token is not for is not asked about. One that does not answer, or takes
    longer than the request timeout for all, is not asked further in this round, and
    counts as unreadable.
    """
    wanted = list(records)
    until = time.monotonic() + settings.request_timeout

    def ask(participant: Observed) -> dict[TransactionId, Shown]:
        found: dict[TransactionId, Shown] = {}
        listing = lists.get(participant.name)
        for record in wanted:
            if participant.name not in record.participants:
                continue
            if listing and listing.is_blind_to(record.id.application):
                continue
            try:
                found[record.id] = participant.show(record.id)
            except TwoPhaseError as error:
                unreadable.setdefault(participant.name, str(error))
                break
            if time.monotonic() > until:
                unreadable.setdefault(participant.name, "it answers too slowly")
                break
        return found

    by_name = ask_at_once(ask, participants)
    by_id: dict[TransactionId, dict[str, Shown]] = {}
    for name, found in by_name.items():
        for transaction, shown in found.items():
            by_id.setdefault(transaction, {})[name] = shown
    return {t: shown for t, shown in by_id.items() if not _forgotten(log, t, shown)}


def _forgotten(
    log: SqlDecisionLog, transaction: TransactionId, shown: Mapping[str, Shown]
) -> bool:
    """Whether somebody has forgotten it because the log has, since it was read."""
    said = {one.state for one in shown.values()}
    if ParticipantState.FORGOTTEN not in said:
        return False
    try:
        record = log.read(transaction)
    except DecisionLogError:
        return True
    return record is None or record.finished is not None
