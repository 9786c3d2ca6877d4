"""A transaction's spans as a tree, with the meaning of each; pure."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tracing_2pc.core.names import TRANSACTION, describe_span
from tracing_2pc.inspection.wording import format_count, join_names

NO_RECORD: Final = "the log has no record of it: these may be spans of another log's"
"""The note where spans are found by the transaction's id alone."""

NO_PROOF: Final = (
    "A missing span proves nothing: what was decided stands in the log. A process "
    "keeps none if it is on another machine, or another user's, if TPC_SPANS is off "
    "there, if OpenTelemetry's SDK is not installed there, or if it was killed."
)

_END: Final = 1 << 63
"""Nanoseconds: no clock shows it."""

_STATUS: Final = "http.response.status_code"
_DETAILS: Final[Mapping[str, str]] = {
    "tpc.participant": "{}",
    "tpc.branch": "branch {}",
    "tpc.rows": "{} rows",
    "tpc.vote": "vote {}",
    "tpc.decision": "decision {}",
    "tpc.cause": "cause {}",
    "tpc.failure": "{}",
    "tpc.outcome": "outcome {}",
    "tpc.diagnosis": "{}",
    "tpc.waits_for": "waits for {}",
    "tpc.action": "action {}",
    _STATUS: "status {}",  # of what went wrong
    "error.type": "error {}",
}
"""Attributes that are shown with a span, in this order."""


class TraceSpan(NamedTuple):
    """One span, from any source; times are Unix nanoseconds by its host's clock."""

    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    kind: str  # server, client, internal …
    start: int
    end: int
    service: str
    host: str
    attributes: Mapping[str, Any]
    error: bool
    links: tuple[str, ...] = ()  # ids of traces

    @classmethod
    def from_ring(cls, line: Mapping[str, Any]) -> TraceSpan | None:
        """Read a span that a process kept; None if it is not whole."""
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
            return cls(
                str(line["trace_id"]),
                str(line["span_id"]),
                line["parent_id"] and str(line["parent_id"]),
                str(line["name"]),
                str(line["kind"]).lower(),
                int(line["start"]),
                int(line["end"]),
                str(line["service"]),
                str(line["host"]),
                dict(line["attributes"]),
                line["status"] == "ERROR",
                tuple(str(link["trace_id"]) for link in line["links"]),
            )
        return None


@dataclasses.dataclass(frozen=True, slots=True)
class TraceRow:
    """A span in its place in the tree."""

    span: TraceSpan
    depth: int  # 0 for what has no parent here
    offset: float  # seconds from the first span of its trace; clocks of hosts differ
    lasted: float  # seconds
    meaning: str  # what it is, in words; empty for a span that is not ours
    detail: str  # what its attributes say, in a line
    orphaned: bool = False  # its parent is not here
    linked: bool = False  # it is in another trace, which links to this one

    @property
    def words(self) -> str:
        """Its meaning and details, after marks for an error and a missing parent."""
        odd = {
            "ERROR": self.span.error,
            "in another trace, which links to this one": self.linked,
            "its parent is missing": self.orphaned and not self.linked,
        }
        meaning = self.meaning or "a span of the program's own"
        text = f"{meaning}: {self.detail}" if self.detail else meaning
        return ". ".join([*(mark for mark, applies in odd.items() if applies), text])

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        names = ("depth", "offset", "lasted", "meaning", "detail", "orphaned", "linked")
        own = {name: getattr(self, name) for name in names}
        return {**self.span._asdict(), **own}


@dataclasses.dataclass(frozen=True, slots=True)
class TraceView:
    """A transaction's trace, as far as it was found."""

    trace: str | None  # its id; None if it is not known
    source: str  # who had the spans; empty if nobody
    # As a tree, each child below its parent, in the order of time.
    rows: tuple[TraceRow, ...]
    gaps: tuple[str, ...]  # what is not there, and where that is seen
    notes: tuple[str, ...]  # who was asked in vain
    known: bool  # whether anybody knows of it, as far as all could be asked

    @property
    def services(self) -> str:
        """The number of spans of each service."""
        counted = Counter(row.span.service for row in self.rows)
        return ", ".join(f"{name} {number}" for name, number in counted.items())

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        return {
            "trace": self.trace,
            "source": self.source,
            "spans": [row.to_json() for row in self.rows],
            "gaps": list(self.gaps),
            "notes": list(self.notes),
        }


def trace_tree(spans: Iterable[TraceSpan], trace: str) -> list[TraceRow]:
    """Return the spans of a trace as a tree, then those of others that link to it.

    Duplicates are removed, and so are spans without a time. A span that is its own
    ancestor stands by itself.
    """
    whole = (
        s for s in spans if min(s.start, s.end) >= 0 and max(s.start, s.end) < _END
    )
    by_id = {(span.trace_id, span.span_id): span for span in whole}
    every = sorted(by_id.values(), key=lambda s: (s.trace_id != trace, s.start))
    below: dict[tuple[str, str | None], list[TraceSpan]] = {}
    tops: list[TraceSpan] = []
    for span in every:
        parent = span.trace_id, span.parent_id
        if parent in by_id:
            below.setdefault(parent, []).append(span)
        else:
            tops.append(span)
    rows: list[TraceRow] = []
    seen: set[tuple[str, str]] = set()
    first = every[0].start if every else 0
    for top in [*tops, *every]:  # then what is in no tree: it is in a circle
        rows += _below(top, below, by_id, seen, trace, first)
    return rows


def _below(
    top: TraceSpan,
    below: Mapping[tuple[str, str | None], Sequence[TraceSpan]],
    by_id: Mapping[tuple[str, str], TraceSpan],
    seen: set[tuple[str, str]],
    trace: str,
    first: int,
) -> Iterator[TraceRow]:
    waiting = [(top, 0)]
    while waiting:
        span, depth = waiting.pop()
        key = span.trace_id, span.span_id
        if key in seen:
            continue
        seen.add(key)
        parent = by_id.get((span.trace_id, span.parent_id or ""))
        yield TraceRow(
            span,
            depth,
            (span.start - first) / 1e9,
            max(0, span.end - span.start) / 1e9,
            describe_span(
                span.name, span.kind, span.attributes, parent.name if parent else ""
            ),
            _detail(span),
            orphaned=span.parent_id is not None and parent is None,
            linked=span.trace_id != trace,
        )
        waiting += ((child, depth + 1) for child in reversed(below.get(key, ())))


def _detail(span: TraceSpan) -> str:
    known = {name: str(span.attributes.get(name, "")) for name in _DETAILS}
    if not span.error or known["error.type"] == known[_STATUS]:
        del known[_STATUS]  # it is said as the error's type
    return ", ".join(
        _DETAILS[name].format(text) for name, text in known.items() if text
    )


def find_gaps(rows: Sequence[TraceRow], participants: Iterable[str]) -> list[str]:
    """Describe missing spans, as far as the other spans or the record show them."""
    own = [row for row in rows if not row.linked]
    gaps = []
    if not any(row.span.name == TRANSACTION for row in own):
        gaps.append(
            f"{TRANSACTION}, the root, is not there: the process that decides keeps it "
            "at the decision"
        )
    if orphans := Counter(row.span.service for row in own if row.orphaned):
        whose = [f"{format_count(n, 'span')} of {name}" for name, n in orphans.items()]
        gaps.append(f"the parent is missing of {join_names(whose)}")
    served = {r.span.parent_id for r in own if r.span.kind == "server"}
    asked: dict[str, list[str]] = {name: [] for name in participants}
    for row in own:
        name = row.span.attributes.get("tpc.participant")
        if row.span.kind == "client" and name is not None:
            reply = "answered" if _STATUS in row.span.attributes else "silent"
            # A participant without a service answers in the span that asks it.
            is_kept = row.span.span_id in served or "tpc.state" in row.span.attributes
            asked.setdefault(str(name), []).append("kept" if is_kept else reply)
    for name, requests in asked.items():
        share = f"of {format_count(len(requests), 'request')}"
        if not requests:
            gaps.append(f"no request to {name} is there")
        if lost := requests.count("answered"):
            gaps.append(f"{name} has kept no span for {lost} {share}")
        if silent := requests.count("silent"):
            gaps.append(
                f"{silent} {share} to {name} had no answer, and may not have been "
                "received"
            )
    return gaps
