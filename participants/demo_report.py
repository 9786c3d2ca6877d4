"""What the demo says at the end: kills, counts, and one transaction as a tree."""

from __future__ import annotations

import dataclasses
import http.client
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

from tracing_2pc.core import names
from tracing_2pc.core.log_reader import TransactionFilter
from tracing_2pc.core.states import FINAL, TransactionState
from tracing_2pc.store import SqlDecisionLog
from tracing_2pc.testing import span_tree

from .flights import APPLICATION
from .oracle import Verdict
from .watching import Flag

Span = Mapping[str, Any]


class Url(Protocol):
    """Something with an address."""

    url: str


class Running(Protocol):
    """What of the demo is asked for the state after a kill."""

    @property
    def ledger(self) -> Url: ...  # noqa: D102
    @property
    def notifier(self) -> Url: ...  # noqa: D102
    @property
    def token(self) -> str: ...  # noqa: D102


@dataclasses.dataclass(frozen=True)
class Kill:
    """One SIGKILL, and the state that it left behind.

    Attributes:
        process: driver, ledger or notifier.
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
    process: str, failpoint: str, log: SqlDecisionLog, demo: Running
) -> Kill:
    """Read the log and ask both participants, while the killed process is down."""
    records = [r for r in log.unfinished(APPLICATION) if r.decision is not None]
    if not records:
        return Kill(process, failpoint, "no transaction", "nothing unfinished", {})
    record = records[0]
    services = {"ledger": demo.ledger, "notifier": demo.notifier}
    states = {
        name: _ask(service.url, str(record.id), demo.token)
        for name, service in services.items()
    }
    return Kill(process, failpoint, str(record.id), str(record.state), states)


def _ask(url: str, transaction: str, token: str) -> str:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=5)
    try:
        headers = {"Authorization": f"Bearer {token}"}
        connection.request("GET", f"/transactions/{transaction}", headers=headers)
        return str(json.loads(connection.getresponse().read()).get("state", "silent"))
    except (OSError, http.client.HTTPException, ValueError):
        return "is down"
    finally:
        connection.close()


def crashed_trace(spans: Sequence[Span], kills: Sequence[Kill]) -> list[str]:
    """Show the batch of the first killed transaction, or the last one, as trees.

    One tree for each attempt at it: decided before the kill, it is one, with the
    recovery inside; else the aborted attempt and, linked to it, the one that followed.
    """
    roots = {s["trace_id"]: s for s in spans if s["name"] == names.TRANSACTION}
    of = {str(r["attributes"]["tpc.transaction.id"]): t for t, r in roots.items()}
    hit = [kill.transaction for kill in kills if kill.transaction]
    transaction = hit[0] if hit else next(reversed(of), "")
    batch = transaction.rpartition(".")[0]
    lines: list[str] = []
    for attempt in sorted(t for t in of if t.rpartition(".")[0] == batch):
        lines += ["", _headline(attempt, roots, of)]
        lines += _tree([s for s in spans if s["trace_id"] == of[attempt]])
    return lines


def _headline(attempt: str, roots: Mapping[str, Span], of: Mapping[str, str]) -> str:
    root = roots[of[attempt]]
    linked = {link["trace_id"] for link in root["links"]}
    before = "".join(f", linked to {t}" for t, trace in of.items() if trace in linked)
    stands = root["attributes"].get("tpc.decision", "out of time")
    return f"the trace of {attempt}: {stands}{before}"


def _tree(spans: Sequence[Span]) -> Iterator[str]:
    # A root that was exported by whoever took over is there twice, with one id.
    once = {s["span_id"]: s for s in spans}
    for line in _folded(span_tree(once.values())):
        is_orphan = not _depth(line) and not line.startswith(names.TRANSACTION)
        yield f"  {line}{'  (its caller was killed)' if is_orphan else ''}"


def _folded(tree: Sequence[str]) -> Iterator[str]:
    """Say once what stands there many times in a row: a span and what is below it."""
    blocks: list[list[str]] = []
    top = min((_depth(line) for line in tree), default=0)
    for line in tree:
        if _depth(line) == top:
            blocks.append([line])
        else:
            blocks[-1].append(line)
    for block, same in itertools.groupby(blocks):
        times = len(list(same))
        yield block[0] + (f"  ({times} times)" if times > 1 else "")
        yield from _folded(block[1:])


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


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
        yield from self.verdict.lines()
        yield f"committed   {self.committed:>7,}"
        yield f"aborted     {self.aborted:>7,}"
        yield f"unfinished  {self.unfinished:>7,}"
        yield f"kills       {len(self.kills):>7,}"
        yield f"seconds     {self.seconds:>7,.0f}"
        yield ""
        yield (
            "every batch is in both services, once"
            if self.good
            else "A PROMISE WAS BROKEN: please report this, with --keep"
        )
