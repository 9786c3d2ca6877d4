"""What `@traced_sink` costs, against the same span made by hand.

The library's arm is a sink as its author writes it, decorated, and a call of one of its
phases as the coordinator makes it: inside the span of a branch or a delivery, with a
handle. The base is the same method with the span made by hand, by the SDK's
`start_as_current_span` and with the same attributes. What the base does not do, and the
library does in each call: look for the branch's records and for the context in the
handle, compare that with the current one, guard against a subclass that calls its
parent, and keep the text of an error out of the span.

| goal | library | base | limit |
|---|---|---|---|
| A1 | `pre_commit(handle)` in a task | by hand, its attribute | 0.90 |
| A2 | `commit(handle)`, a handle from the log | by hand, its attribute | 0.85 |
| A3 | `pre_commit(handle)` | `start_span` and `end`, never current | 1.12 |
| A4 | `commit_transaction(id, handles)` | by hand, and the id of the argument | 1.00 |
| A5 | `invoke(handle, record)`, tracing off | a pass-through of `wraps` | 1.25 |
| A6 | A1, and a sampler that takes nothing | by hand, on the same tracer | 0.70 |
| A7 | A1, and a provider that does nothing | by hand, on the same tracer | 0.40 |

The goals were written for a function with no attribute (A2) or with five that never
change (A1). A phase has one that never changes, `tpc.phase`, so A1 and A2 are the two
ends of a branch, with one attribute in each arm. A5 is the call that is made for every
record; it must also be at most 0.015 of a sampled span, which stands in its settings as
`of_a_span`, and counts for the verdict.

Time is the CPU time of the thread, because every arm is nothing else: what other
processes do to the clock on the wall is in neither. Spans go to a `BatchSpanProcessor`
whose queue never drops and whose exporter does nothing; it is emptied between the
blocks.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler

from bench import pair
from tracing_2pc import trace_headers, traced_sink
from tracing_2pc.core.model import BranchContext, BranchId, TransactionId
from tracing_2pc.tracing.decorator import handles

CALLS: Final = 300
ROUNDS: Final = 101
LIMITS: Final = {
    "A1": 0.90,
    "A2": 0.85,
    "A3": 1.12,
    "A4": 1.00,
    "A5": 1.25,
    "A6": 0.70,
    "A7": 0.40,
}
OF_A_SPAN: Final = 0.015
_ID: Final = TransactionId("bench", 7, 1)
_QUEUE: Final = 1 << 18


@traced_sink
class Sink:
    """A sink whose phases do nothing: all that they cost is their trace."""

    def begin(self, context: BranchContext) -> dict[str, Any]:
        return {"id": str(context.branch)}

    def invoke(self, handle: dict[str, Any], record: object) -> None:
        pass

    def pre_commit(self, handle: dict[str, Any]) -> None:
        pass

    def commit(self, handle: dict[str, Any]) -> None:
        pass

    def commit_transaction(self, transaction: str, handles: Sequence[object]) -> None:
        pass


class ByHand:
    """The same, as one writes it with OpenTelemetry alone."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self.tracer = tracer

    def pre_commit(self, handle: dict[str, Any]) -> None:
        with self.tracer.start_as_current_span(
            "Sink.pre_commit", attributes={"tpc.phase": "pre_commit"}
        ):
            pass

    def commit(self, handle: dict[str, Any]) -> None:
        with self.tracer.start_as_current_span(
            "Sink.commit", attributes={"tpc.phase": "commit"}
        ):
            pass

    def commit_transaction(self, transaction: str, handles: Sequence[object]) -> None:
        with self.tracer.start_as_current_span(
            "Sink.commit",
            attributes={"tpc.phase": "commit", "tpc.transaction.id": transaction},
        ):
            pass

    def never_current(self, handle: dict[str, Any]) -> None:
        span = self.tracer.start_span(
            "Sink.pre_commit", attributes={"tpc.phase": "pre_commit"}
        )
        span.end()


def _pass_through(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def wrapper(*arguments: Any, **named: Any) -> Any:
        return method(*arguments, **named)

    return wrapper


class Wrapped:
    """The least that a decorator can do."""

    @_pass_through
    def invoke(self, handle: dict[str, Any], record: object) -> None:
        pass


class _Nowhere(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


Work = tuple[Callable[..., object], Iterable[tuple[object, ...]]]
"""What a block calls, and with what each time."""
Make = Callable[[], Work]
"""Makes the work of a block, inside the span of its branch or delivery."""


def measure(rounds: int) -> Iterator[dict[str, Any]]:
    """Measure every goal; yield its line when it is known."""
    on, unsampled = _provider(ALWAYS_ON), _provider(ALWAYS_OFF)
    nothing = trace.NoOpTracerProvider()
    yield _goal("A1", rounds, on, _pre_commit, "pre_commit")
    yield _goal("A2", rounds, on, _commit, "commit")
    yield _goal("A3", rounds, on, _pre_commit, "never_current")
    yield _goal("A4", rounds, on, _commit_transaction, "commit_transaction")
    yield _goal_off(rounds, on)
    yield _goal("A6", rounds, unsampled, _pre_commit, "pre_commit")
    yield _goal("A7", rounds, nothing, _pre_commit, "pre_commit")
    for provider in (on, unsampled):
        provider.shutdown()


def _goal(
    goal: str, rounds: int, provider: trace.TracerProvider, library: Make, base: str
) -> dict[str, Any]:
    by_hand = ByHand(provider.get_tracer("by hand"))
    transaction = (str(_ID), [{}]) if base == "commit_transaction" else ({},)
    arms = {
        "library": _block(library, provider),
        "base": _block(
            lambda: (getattr(by_hand, base), [transaction] * CALLS), provider
        ),
    }
    durations = pair.measure(arms, rounds)
    ratio = pair.compare(durations["library"], durations["base"])
    return pair.line(goal, ratio, LIMITS[goal], {"calls": CALLS})


def _goal_off(rounds: int, on: TracerProvider) -> dict[str, Any]:
    """A5 has two limits: a pass-through's cost, and a share of a sampled span's."""
    by_hand = ByHand(on.get_tracer("by hand"))
    arms = {
        "library": _block(lambda: (Sink().invoke, [({}, 1)] * CALLS), None),
        "base": _block(lambda: (Wrapped().invoke, [({}, 1)] * CALLS), None),
        "span": _block(lambda: (by_hand.pre_commit, [({},)] * CALLS), on),
    }
    durations = pair.measure(arms, rounds)
    share = pair.compare(durations["library"], durations["span"])
    ratio = pair.compare(durations["library"], durations["base"])
    of_a_span = {**share.as_json(), "limit": OF_A_SPAN}
    settings = {"calls": CALLS, "of_a_span": of_a_span}
    goal = pair.line("A5", ratio, LIMITS["A5"], settings)
    verdicts = (goal["verdict"], share.verdict(OF_A_SPAN))
    worst = next(v for v in ("fail", "inconclusive", "pass") if v in verdicts)
    return {**goal, "verdict": worst}


def _pre_commit() -> Work:
    sink, handle = _begun()
    return sink.pre_commit, [(handle,)] * CALLS


def _commit() -> Work:
    """Every handle comes from the log by itself, as in a delivery."""
    sink, handle = _begun()
    sink.pre_commit(handle)
    text = json.dumps(handle)
    return sink.commit, [(json.loads(text),) for _ in range(CALLS)]


def _commit_transaction() -> Work:
    sink, handles = Sink(), _commit()[1]
    return sink.commit_transaction, [(str(_ID), [*handle]) for handle in handles]


def _begun() -> tuple[Sink, dict[str, Any]]:
    sink = Sink()
    branch = BranchContext(_ID, BranchId(0, 1), ("Sink",), trace_headers())
    return sink, sink.begin(branch)


def _block(make: Make, provider: trace.TracerProvider | None) -> pair.Block:
    """Return an arm: so many calls inside a branch's span. Flushing is not timed."""

    def block() -> float:
        with in_force(provider), trace.get_tracer("job").start_as_current_span("job"):
            call, work = make()
            started = time.thread_time_ns()
            for arguments in work:
                call(*arguments)
            elapsed = time.thread_time_ns() - started
        if isinstance(provider, TracerProvider):
            provider.force_flush()
        return elapsed

    return block


@contextmanager
def in_force(provider: trace.TracerProvider | None) -> Iterator[None]:
    """Make it the process's own. The API lets it be set once; arms take turns."""
    before = trace._TRACER_PROVIDER
    trace._TRACER_PROVIDER = provider
    try:
        yield
    finally:
        trace._TRACER_PROVIDER = before
        handles.HELD.clear()
        handles.in_use = False


def _provider(sampler: Sampler) -> TracerProvider:
    provider = TracerProvider(sampler, shutdown_on_exit=False)
    provider.add_span_processor(
        BatchSpanProcessor(
            _Nowhere(),
            max_queue_size=_QUEUE,
            max_export_batch_size=_QUEUE,  # a block does not wake the exporter
            schedule_delay_millis=600_000,
        )
    )
    return provider
