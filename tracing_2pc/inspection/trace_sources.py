"""Sources of the spans of a trace: Jaeger or SkyWalking, else this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import urllib3

from tracing_2pc.core.errors import DecisionLogError
from tracing_2pc.core.log_reader import LogReader
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.settings import Settings
from tracing_2pc.inspection.trace import (
    NO_RECORD,
    TraceSpan,
    TraceView,
    find_gaps,
    trace_tree,
)
from tracing_2pc.tracing import ring

TRACE_ID: Final = re.compile("[0-9a-f]{32}")

_SECONDS: Final = 3.0
_HERE: Final = 10.0
"""Seconds in which spans of this machine are read: a folder may be large, or hostile.
"""
_ATTEMPTS: Final = 100
_BATCH: Final = re.compile(r"([a-z0-9][a-z0-9-]{0,39})\.(0|[1-9][0-9]{0,17})")
_LARGEST: Final = 64 << 20
"""Bytes of an answer."""

_QUERY: Final = """query($i: ID!){ queryTrace(traceId: $i){ spans{
segmentId spanId parentSpanId serviceCode serviceInstanceName endpointName type isError
startTime endTime refs{ parentSegmentId parentSpanId } tags{ key value } } } }"""
_KINDS: Final = {"Entry": "server", "Exit": "client"}
_NAMES: Final = {"http.status_code": "http.response.status_code"}
"""OpenTelemetry's names of attributes that SkyWalking names differently."""

Ask: TypeAlias = Callable[[str, str], list[TraceSpan]]
"""Asks a backend, which a link leads to, for a trace.

Raises:
    OSError: it cannot be asked.
    ValueError: its answer is no trace.
"""


def find_trace(
    log: LogReader, transaction: TransactionId, settings: Settings
) -> TraceView:
    """Find a transaction's spans; where its record has no trace, by its id.

    If the log cannot be read, the spans of this machine are found all the same.
    """
    trace, participants, notes = None, [], []
    record = None
    gaps: tuple[str, ...] = ()
    try:
        if (record := log.read(transaction)) is not None:
            trace = record.trace_id
            own = set(record.own_sinks)
            participants = [name for name in record.participants if name not in own]
        else:
            gaps = (NO_RECORD,)
    except DecisionLogError as error:
        notes.append(f"the record cannot be read: {error}")
    view = read_trace(settings, trace, str(transaction), participants, notes)
    gaps = (*gaps, *view.gaps) if view.rows else view.gaps
    known = view.known or record is not None
    return dataclasses.replace(view, gaps=gaps, known=known)


def transaction_named(typed: str) -> Callable[[LogReader], TransactionId]:
    """Read an id, which may lack its attempt; return a function that finds the newest.

    Raises:
        ValueError: neither is an id.
    """
    if batch := _BATCH.fullmatch(typed):
        return lambda log: newest_attempt(log, batch[1], int(batch[2]))
    transaction = TransactionId.parse(typed)
    return lambda log: transaction


def newest_attempt(log: LogReader, application: str, batch: int) -> TransactionId:
    """Return the last attempt at a batch that is on record; the first if none is."""
    attempts = [TransactionId(application, batch, n) for n in range(1, _ATTEMPTS + 1)]
    return max(log.states_of(attempts), default=attempts[0])


def read_trace(
    settings: Settings,
    trace: str | None,
    transaction: str = "",
    participants: Iterable[str] = (),
    notes: Iterable[str] = (),
) -> TraceView:
    """Ask the backends of `links` until one has it; else look on this machine."""
    notes = [*notes]
    spans: list[TraceSpan] = []
    source = ""
    for name, url, ask in _backends(settings) if trace else ():
        host = urlsplit(url).netloc
        try:
            if spans := ask(url, trace or ""):
                source = f"{name} at {host}"
                break
            notes.append(f"{name} at {host} has no span of it")
        except (OSError, ValueError, urllib3.exceptions.HTTPError) as error:
            notes.append(f"{name} at {host} was asked in vain: {_short(error)}")
    if not spans:
        trace, spans, source = _on_this_machine(trace, transaction, notes)
    rows = tuple(trace_tree(spans, trace or ""))
    gaps = find_gaps(rows, participants) if rows else []
    known = bool(rows or notes)
    unique = tuple(dict.fromkeys(notes))
    return TraceView(trace, source, rows, tuple(gaps), unique, known)


def _on_this_machine(
    trace: str | None, transaction: str, notes: list[str]
) -> tuple[str | None, list[TraceSpan], str]:
    """Return the trace that its root names, if none is known; its spans; their place.

    Spans of other traces are among them if they link to it.
    """
    if not (folders := ring.folders()):
        notes.append(f"no span is kept on this machine: {ring.VARIABLE} is {ring.OFF}")
    until = time.monotonic() + _HERE
    if trace is None:
        ids = (s.trace_id for s in _kept(transaction, folders, notes, until))
        trace = next(ids, None)
    if trace is None:
        return None, [], ""
    spans = [
        span
        for span in _kept(trace, folders, notes, until)
        if trace == span.trace_id or trace in span.links
    ]
    return trace, spans, "this machine" if spans else ""


def _kept(
    id_: str, folders: Iterable[Path], notes: list[str], until: float
) -> Iterator[TraceSpan]:
    for folder in folders:
        try:
            lines = ring.read(folder, id_, until)
            yield from filter(None, map(TraceSpan.from_ring, lines))
        except OSError as error:
            notes.append(f"spans in {folder} cannot be read: {error.strerror}")


def _backends(settings: Settings) -> Iterator[tuple[str, str, Ask]]:
    """Yield the linked backends that have an API for traces, with its base URL."""
    for name, template in settings.links.items():
        api = settings.trace_apis.get(name)
        before, _, _ = template.partition("/trace/{trace}")
        if name.lower().startswith("jaeger") and before != template:
            yield name, api or before, _ask_jaeger
        elif name.lower().startswith("skywalking"):
            parts = urlsplit(template)
            yield name, api or f"{parts.scheme}://{parts.netloc}", _ask_skywalking


def _ask_jaeger(url: str, trace: str) -> list[TraceSpan]:
    answer = _answer("GET", f"{url}/api/traces/{trace}")
    with _being_read():
        traces = [t for t in answer.get("data") or () if t["traceID"] == trace]
        return [_of_jaeger(s, t["processes"]) for t in traces for s in t["spans"]]


def _of_jaeger(span: Mapping[str, Any], processes: Mapping[str, Any]) -> TraceSpan:
    process = processes[span["processID"]]
    tags = {tag["key"]: tag["value"] for tag in span.get("tags") or ()}
    host = {tag["key"]: tag["value"] for tag in process.get("tags") or ()}
    parents = [r for r in span["references"] if r["refType"] == "CHILD_OF"]
    links = [r["traceID"] for r in span["references"] if r["refType"] != "CHILD_OF"]
    start = int(span["startTime"]) * 1000  # microseconds
    return TraceSpan(
        str(span["traceID"]),
        str(span["spanID"]),
        str(parents[0]["spanID"]) if parents else None,
        str(span["operationName"]),
        str(tags.get("span.kind", "internal")),
        start,
        start + int(span["duration"]) * 1000,
        str(process["serviceName"]),
        str(host.get("host.name", "")),
        tags,
        tags.get("otel.status_code") == "ERROR",
        tuple(map(str, links)),
    )


def _ask_skywalking(url: str, trace: str) -> list[TraceSpan]:
    asked = {"query": _QUERY, "variables": {"i": trace}}
    answer = _answer("POST", f"{url}/graphql", json.dumps(asked).encode())
    with _being_read():
        spans = answer["data"]["queryTrace"]["spans"]
        return [_of_skywalking(span, trace) for span in spans]


def _of_skywalking(span: Mapping[str, Any], trace: str) -> TraceSpan:
    segment, parent = span["segmentId"], None
    if span["parentSpanId"] >= 0:
        parent = f"{segment}.{span['parentSpanId']}"
    elif refs := span.get("refs"):
        parent = f"{refs[0]['parentSegmentId']}.{refs[0]['parentSpanId']}"
    return TraceSpan(
        trace,
        f"{segment}.{span['spanId']}",
        parent,
        str(span["endpointName"]),
        _KINDS.get(span["type"], "internal"),
        int(span["startTime"]) * 1_000_000,  # milliseconds
        int(span["endTime"]) * 1_000_000,
        str(span["serviceCode"]),
        str(span.get("serviceInstanceName") or ""),
        {_NAMES.get(t["key"], t["key"]): t["value"] for t in span.get("tags") or ()},
        bool(span["isError"]),
    )


@contextlib.contextmanager
def _being_read() -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError("what it answers is no trace") from error


def _answer(method: str, url: str, body: bytes | None = None) -> Any:
    """Ask once, in bounded time and space; follow nothing."""
    with (
        urllib3.PoolManager(1) as pool,
        contextlib.closing(
            pool.request(
                method,
                url,
                body=body,
                headers={"Content-Type": "application/json"},
                timeout=urllib3.Timeout(total=_SECONDS),
                retries=False,
                redirect=False,
                preload_content=False,
            )
        ) as answer,
    ):
        if answer.status == 404:
            return {"data": None}
        if answer.status != 200:
            raise ValueError(f"answered {answer.status}")
        text, until = bytearray(), time.monotonic() + _SECONDS
        while part := answer.read1(1 << 16):
            text += part
            if len(text) > _LARGEST or time.monotonic() > until:
                raise ValueError("the answer is too long")
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise ValueError("answered no JSON") from None


def _short(error: Exception) -> str:
    """Return an error's cause without addresses of objects, as urllib3's texts have."""
    if isinstance(error, urllib3.exceptions.NewConnectionError):  # a time-out, too
        return "nothing listens there"
    if isinstance(error, urllib3.exceptions.TimeoutError):
        return "no answer in time"
    is_theirs = isinstance(error, urllib3.exceptions.HTTPError)
    return "the connection broke" if is_theirs else str(error)
