"""What one round of the watcher came to, and how it is told."""

from __future__ import annotations

import dataclasses
import datetime
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from tracing_2pc.model import TransactionId
from tracing_2pc.operations.view import plain
from tracing_2pc.protocol.diagnosis import Diagnosis
from tracing_2pc.protocol.recovery import Recovered
from tracing_2pc.states import DiagnosisKind, Severity, TransactionState

LINES: Final = 20
"""Lines of one kind that a sweep prints; the rest is counted."""

Key = tuple[TransactionId, DiagnosisKind]


@dataclasses.dataclass(frozen=True, slots=True)
class Unfinished:
    """What the log has not closed.

    Args:
        counts: by state.
        oldest: when the oldest was begun, by state; Unix seconds.
    """

    counts: Mapping[TransactionState, int] = dataclasses.field(default_factory=dict)
    oldest: Mapping[TransactionState, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Sweep:
    """One round.

    Args:
        at: when it ended; Unix seconds.
        diagnoses: what is wrong now, with what cannot be looked at again meanwhile.
        found: those that were not known before.
        gone: those that are known no more.
        unreadable: participants without an address or a whole list, *log*, or *log
            of* an application with a record that cannot be trusted, *name beyond* the
            one application that our token is bound to, *the clock*; and why.
        newly_unreadable: those that could be read in the round before.
        readable: those that could not, and can again.
        unfinished: what the log has not closed, when it was last read.
        held_back: what holds its application back, of which nothing is diagnosed, and
            who keeps it from going on since when.
        newly_held_back: those of it that were not in the round before.
        recovered: where that was asked for, what was done, and what could not be,
            unless the sweep before said so.
    """

    at: float
    diagnoses: tuple[Diagnosis, ...] = ()
    found: tuple[Diagnosis, ...] = ()
    gone: tuple[Diagnosis, ...] = ()
    unreadable: Mapping[str, str] = dataclasses.field(default_factory=dict)
    newly_unreadable: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()
    unfinished: Unfinished = dataclasses.field(default_factory=Unfinished)
    recovered: tuple[Recovered, ...] = ()
    held_back: Mapping[TransactionId, str] = dataclasses.field(default_factory=dict)
    newly_held_back: tuple[TransactionId, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether everything could be read, and nothing is wrong."""
        return not self.diagnoses and not self.unreadable


def key(diagnosis: Diagnosis) -> Key:
    """Say what makes two diagnoses the same one."""
    return diagnosis.transaction, diagnosis.diagnosis


def gravest(diagnoses: Iterable[Diagnosis]) -> list[Diagnosis]:
    """Put the critical ones first, and the oldest of them."""
    return sorted(
        diagnoses,
        key=lambda one: (one.severity is not Severity.CRITICAL, -one.age),
    )


def items(sweep: Sweep) -> Iterator[dict[str, Any]]:
    """Tell what has changed, as one object for each line; bounded by `LINES`."""
    for name in sweep.newly_unreadable:
        why = sweep.unreadable[name]
        yield {"at": sweep.at, "event": "unreadable", "who": name, "why": why}
    for name in sweep.readable:
        yield {"at": sweep.at, "event": "readable", "who": name}
    for event, changed in (("found", sweep.found), ("gone", sweep.gone)):
        shown = gravest(changed)
        for one in shown[:LINES]:
            yield {"at": sweep.at, "event": event, **plain(one)}
        if rest := shown[LINES:]:
            kinds = Counter(str(one.diagnosis) for one in rest)
            yield {"at": sweep.at, "event": event, "more": len(rest), **kinds}
    for id_ in sweep.newly_held_back[:LINES]:
        about = {"transaction": str(id_), "why": sweep.held_back[id_]}
        yield {"at": sweep.at, "event": "waiting", **about}
    for recovered in sweep.recovered[:LINES]:
        yield {
            "at": sweep.at,
            "event": "recovered" if recovered.done else "tried",
            "transaction": str(recovered.record.id),
            "why": recovered.remark,
        }
    if rest_of := sweep.recovered[LINES:]:
        yield {"at": sweep.at, "event": "recovered", "more": len(rest_of)}


def line(item: Mapping[str, Any]) -> str:
    """Write one of them for a person."""
    at = datetime.datetime.fromtimestamp(item["at"], datetime.timezone.utc)
    head = f"{at:%Y-%m-%dT%H:%M:%SZ} {item['event']:<10}"
    if "more" in item:
        return f"{head} and {item['more']} more"
    if "diagnosis" not in item:
        about = item.get("who") or item.get("transaction")
        return f"{head} {about} {item.get('why', '')}".rstrip()
    what = f"{item['severity']} {item['diagnosis']} {item['transaction']}"
    if item["event"] == "gone":
        return f"{head} {what}"
    return f"{head} {what}: {item['why']}. Verdict: {item['verdict']}"
