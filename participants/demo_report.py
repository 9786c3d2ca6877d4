"""What the demo says at the end: kills, counts, one transaction as a tree in words."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tracing_2pc.cli.terminal import paint
from tracing_2pc.cli.trace import lines
from tracing_2pc.core import names
from tracing_2pc.core.errors import ParticipantError
from tracing_2pc.core.log_reader import TransactionFilter
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.remote_participant import RemoteParticipant, open_participant
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import FINAL, TransactionState
from tracing_2pc.inspection.trace import TraceRow
from tracing_2pc.inspection.trace_sources import find_trace
from tracing_2pc.inspection.wording import format_count
from tracing_2pc.store import SqlDecisionLog

from .flights import APPLICATION
from .oracle import Verdict
from .watching import Flag

NEXT: Final = (
    "",
    "Where to look next",
    "  a project of your own, which runs at once   tracing-2pc new my-pipeline",
    "  the same by hand, in five minutes           README.md",
    "  what may be relied on under a crash         docs/concepts.md",
)


@dataclasses.dataclass(frozen=True)
class Kill:
    """One SIGKILL, and the state that it left behind.

    Attributes:
        process: driver or notifier.
        failpoint: where it was killed.
        transaction: the one that it was working on; none if it was publishing.
        state: of that transaction in the log.
        states: what each participant answers about it.
        flag: what the watcher reported, where it had the time to.
    """

    process: str
    failpoint: str
    transaction: str
    state: str
    states: dict[str, str]
    flag: Flag | None = None

    def __str__(self) -> str:
        if not self.transaction:
            what = "the broker has a transaction whole, and no reader sees any of it"
            return f"the {self.process} at {self.failpoint}: {what}"
        states = ", ".join(f"{name} {state}" for name, state in self.states.items())
        return (
            f"the {self.process} at {self.failpoint}, in {self.transaction}: the log "
            f"says {self.state}; {states}"
        )


def observe_kill(
    process: str,
    failpoint: str,
    log: SqlDecisionLog,
    addresses: Mapping[str, str],
    token: str,
) -> Kill:
    """Read the log and ask the participants, while the killed process is down."""
    unfinished = log.unfinished(APPLICATION)
    records = [r for r in unfinished if r.decision is not None] or unfinished
    if not records:
        return Kill(process, failpoint, "no transaction", "nothing unfinished", {})
    record = records[0]
    states = {
        name: _ask(open_participant(name, url, token, 5.0), record.id)
        for name, url in addresses.items()
    }
    return Kill(process, failpoint, str(record.id), str(record.state), states)


def _ask(participant: RemoteParticipant, transaction: TransactionId) -> str:
    try:
        return str(participant.show(transaction).state)
    except ParticipantError:
        return "is down"


def show_trace(log: SqlDecisionLog, hit: Sequence[str]) -> list[str]:
    """Show the first transaction that was hit, or the last of all, as `trace` does.

    Of the requests that an outbox has sent the first is shown.
    """
    newest = log.transactions(TransactionFilter(APPLICATION, limit=1))
    known = [TransactionId.parse(text) for text in hit] or [
        row.transaction for row in newest
    ]
    if not known:
        return []
    view = find_trace(log, known[0], Settings())
    shown = dataclasses.replace(view, rows=tuple(_folded(view.rows)))
    return [*lines(str(known[0]), shown)]


def _folded(rows: Sequence[TraceRow]) -> Iterator[TraceRow]:
    below: int | None = None
    sent = False
    for row in rows:
        if below is not None and row.depth > below:
            continue
        below = None
        if row.span.name == names.OUTBOX_SEND:
            if sent:
                below = row.depth
                continue
            sent = True
        yield row


def count_states(log: SqlDecisionLog, application: str) -> Counter[TransactionState]:
    """Count an application's transactions, by state."""
    rows = log.transactions(TransactionFilter(application, limit=10_000))
    return Counter(row.state for row in rows)


@dataclasses.dataclass(frozen=True)
class Summary:
    """The result, for a person and for a program."""

    verdict: Verdict
    kills: Sequence[Kill]
    committed: int
    aborted: int
    unfinished: int
    trace: Sequence[str]
    """The batch that was hit, as trees."""
    seconds: float = 0.0

    @classmethod
    def of(
        cls,
        verdict: Verdict,
        kills: Sequence[Kill],
        log: SqlDecisionLog,
        trace: Sequence[str],
    ) -> Summary:
        """Put it together; the counts of transactions are the log's."""
        counts = count_states(log, APPLICATION)
        return cls(
            verdict,
            kills,
            counts[TransactionState.COMMITTED],
            counts[TransactionState.ABORTED],
            sum(n for s, n in counts.items() if s not in FINAL),
            trace,
        )

    @property
    def good(self) -> bool:
        """Whether every promise was kept."""
        return self.verdict.good and self.unfinished == 0

    def as_json(self) -> dict[str, Any]:
        """One flat object; fields are only added."""
        return {
            "batches": self.verdict.batches,
            "records": self.verdict.records,
            "kills": len(self.kills),
            "flagged": [k.flag.transaction for k in self.kills if k.flag],
            "committed": self.committed,
            "aborted": self.aborted,
            "lost": self.verdict.lost,
            "duplicated": self.verdict.duplicated,
            "wrong": self.verdict.wrong,
            "rejected": self.verdict.rejected,
            "split": self.verdict.split,
            "unfinished": self.unfinished,
            "seconds": round(self.seconds, 1),
        }

    def lines(self) -> Iterator[str]:
        """Say it to a person."""
        yield from self.trace
        yield ""
        for number, kill in enumerate(self.kills, 1):
            yield f"kill {number}: {kill}"
            if kill.flag:
                yield f"        flagged: {kill.flag}"
        yield ""
        judged = self.verdict
        killed = (
            f", through {format_count(len(self.kills), 'kill')}" if self.kills else ""
        )
        yield _found(judged.lost, "lost", (
            f"each of the {judged.records:,} flights of {judged.batches} days is in "
            f"the ledger's sums, and all {judged.deliveries:,} that were late or "
            "cancelled are at the partner"
        ))  # fmt: skip
        if judged.rejected:
            yield (
                f"{judged.rejected:>3,} rejected: of these sums, each in the table of "
                "rejected rows and not in the ledger: a delay below zero breaks the "
                f"constraint that it has here. The other {judged.ledger_rows:,} are "
                "in the ledger alone"
            )
        yield _found(judged.duplicated, "duplicated", f"each is there once{killed}")
        yield _found(judged.wrong, "wrong", "each has the values of the source")
        yield _found(judged.split, "split", "no day is at one of the two only")
        yield _found(self.unfinished, "unfinished", (
            f"the decision log waits for nothing: {self.committed} committed, "
            f"{self.aborted} aborted"
        ))  # fmt: skip
        yield from (f"  {note}" for note in judged.notes)
        yield f"{self.seconds:,.0f} seconds"
        yield ""
        if self.good:
            yield paint("every batch is in both, once", "green")
            yield from NEXT
        else:
            yield paint("A PROMISE WAS BROKEN: please report it, with --keep", "red")


def _found(number: int, what: str, good: str) -> str:
    if number:
        return paint(f"{number:>3,} {what}", "red")
    return f"{paint(f'  0 {what}', 'green')}: {good}"
