"""The forms a sink may come in: Flink's names, more arguments, a span per record."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.trace import StatusCode
from support.texts import texts
from support.traced_sink import Plain, Refusing, branch_of, one_good_one_bad, shipped
from support.tracing import span_tree

from tracing_2pc.core.errors import ContractError
from tracing_2pc.tracing.decorator import handles
from tracing_2pc.tracing.decorator.traced_sink import trace_headers, traced_sink
from tracing_2pc.tracing.transaction import OpenTelemetryTracing

TEXTS = texts("unit")


@dataclasses.dataclass(frozen=True)
class Transaction:
    path: str


class Flinks:
    """What both spellings have."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def _begin(self):
        return Transaction("a")

    def invoke(self, transaction, value, context, *, strict=False):
        self.seen.append((transaction, value, context, strict))

    def commit(self, transaction):
        self.seen.append((transaction,))

    def _pass(self, transaction):
        pass

    abort = _pass


@traced_sink
class Snake(Flinks):
    """As Flink has it, spelled as Python does."""

    begin_transaction = Flinks._begin
    pre_commit = recover_and_commit = recover_and_abort = Flinks._pass


@traced_sink
class Camel(Flinks):
    """As Flink has it; what is recovered is committed in the usual way."""

    beginTransaction = Flinks._begin  # noqa: N815
    preCommit = Flinks._pass  # noqa: N815

    def recoverAndCommit(self, transaction):  # noqa: N802
        self.commit(transaction)

    def recoverAndAbort(self, transaction):  # noqa: N802
        self.abort(transaction)


@pytest.mark.parametrize(
    ("kind", "begin", "pre_commit", "recover"),
    [
        (Snake, "begin_transaction", "pre_commit", "recover_and_"),
        (Camel, "beginTransaction", "preCommit", "recoverAnd"),
    ],
)
@pytest.mark.parametrize("end", ["commit", "abort"])
def test_flinks_names_need_no_naming(exported, kind, begin, pre_commit, recover, end):
    """After a restart the transaction's own object says which trace it is of."""
    sink = shipped(kind())
    transaction = getattr(sink, begin)()
    sink.invoke(transaction, 1, "context")
    getattr(sink, pre_commit)(transaction)
    restored = shipped(transaction)
    handles.HELD.clear()
    again = shipped(kind())
    ending = end if "_" in recover else end.capitalize()
    getattr(again, f"{recover}{ending}")(restored)
    name = kind.__name__
    assert span_tree(exported()) == [
        f"{name}.begin",
        f"  {name}.invoke",
        f"  {name}.pre_commit",
        f"  {name}.{end}",
    ]
    assert exported()[-1].attributes == {"tpc.phase": end}


def test_arguments_pass_unchanged(exported):
    """By position or by the names that the author gave them, more than we know of.

    Of one branch, however its handle was given.
    """
    sink = shipped(Snake())
    transaction = sink.begin_transaction()
    sink.invoke(transaction, 1, "context", strict=True)
    sink.invoke(value=2, context="other", transaction=transaction)
    sink.pre_commit(transaction=transaction)
    sink.commit(transaction=transaction)
    assert sink.seen == [
        (transaction, 1, "context", True),
        (transaction, 2, "other", False),
        (transaction,),
    ]
    assert span_tree(exported()) == [
        "Snake.begin",
        "  Snake.invoke",
        "  Snake.pre_commit",
        "  Snake.commit",
    ]
    assert exported()[1].attributes["tpc.rows"] == 2
    with pytest.raises(TypeError, match="handle"):
        sink.commit(handle=transaction)


def test_a_begin_without_context_takes_nothing_else():
    """The coordinator's context is left out; a mistake is still one."""
    sink = shipped(Snake())
    assert sink.begin_transaction(branch_of({})) == Transaction("a")
    with pytest.raises(TypeError):
        sink.begin_transaction("b")


def test_our_own_names_come_first(exported):
    """A sink's private begin_transaction is its own affair."""

    @traced_sink
    class Both(Plain):
        def begin(self):
            return self.begin_transaction()

        def begin_transaction(self):
            return {}

    shipped(Both()).begin_transaction()
    shipped(Both()).begin()
    assert span_tree(exported()) == ["Both.begin"]


def test_per_record_is_a_span_for_each(exported):
    @traced_sink(per_record=True)
    class Each(Refusing):
        pass

    one_good_one_bad(shipped(Each()))
    assert span_tree(exported()) == [
        "Each.begin",
        "  Each.invoke",
        "  Each.invoke",
        "  Each.abort",
    ]
    good, bad = exported()[1:3]
    assert good.attributes == {"tpc.phase": "invoke", "tpc.rows": 1}
    assert bad.status.status_code is StatusCode.ERROR
    assert "customer" not in bad.to_json()


def test_per_record_has_a_span_for_each_batch(exported):
    class Batch:
        num_rows = 500

    @traced_sink(per_record=True, begin="open")
    class Bulk:
        def open(self, context):
            return {}

        def invoke_batch(self, handle, batch):
            pass

        def pre_commit(self, handle):
            pass

    carrier = OpenTelemetryTracing().reserve().carrier
    sink = shipped(Bulk())
    handle = sink.open(branch_of(carrier))
    sink.invoke_batch(handle, Batch())
    sink.invoke_batch(handle, batch=Batch())
    sink.pre_commit(handle)
    assert span_tree(exported()) == [
        "Bulk.begin",
        "Bulk.invoke",
        "Bulk.invoke",
        "Bulk.pre_commit",
    ]
    assert {f"{s.parent.span_id:016x}" for s in exported()} == {
        carrier["traceparent"][36:52]
    }
    assert [s.attributes["tpc.rows"] for s in exported()[1:3]] == [500, 500]


def test_per_record_costs_nothing_with_tracing_off():
    @traced_sink(per_record=True)
    class Off(Plain):
        def invoke(self, handle, record):
            handle[record] = True

    sink = shipped(Off())
    handle = sink.begin()
    sink.invoke(handle, 1)
    assert handle == {1: True}


async def _commit(self: object, handle: object) -> None:
    await asyncio.sleep(0)


def _generate(self: object, handle: object) -> Iterator[int]:
    yield 1


async def _generate_async(self: object, handle: object) -> Any:
    yield 1


@functools.wraps(_commit)
def _hidden(self: object, handle: object) -> Any:
    return _commit(self, handle)


@pytest.mark.parametrize(
    ("method", "why"),
    [
        (_commit, TEXTS["an async phase, and a cure"]),
        (_generate_async, TEXTS["an async phase"]),
        (_hidden, TEXTS["an async phase"]),
        (_generate, TEXTS["a generator"]),
        (staticmethod(print), TEXTS["no function"]),
        (functools.partialmethod(_commit), TEXTS["no function"]),
    ],
    ids=["async", "async generator", "wrapped", "generator", "static", "partial"],
)
def test_a_phase_that_a_span_could_not_cover_is_refused(method, why):
    """At the class, with what to do: never a span that ends before the work does."""
    kind = type("Late", (Plain,), {"commit": method})
    with pytest.raises(ContractError, match=rf"Late\.commit is .*{why}"):
        traced_sink(kind)


def test_a_phase_that_runs_a_loop_of_its_own_has_its_span_inside(exported):
    """What its tasks send is below the phase, and is over when the phase returns."""
    sent: list[dict[str, str]] = []

    async def send() -> None:
        await asyncio.sleep(0)
        sent.append(trace_headers())

    async def send_all() -> None:
        await asyncio.gather(send(), send())

    @traced_sink
    class Looping(Plain):
        def commit(self, handle):
            asyncio.run(send_all())

    Looping().commit({})
    (phase,) = exported()
    parents = [int(headers["traceparent"][36:52], 16) for headers in sent]
    assert parents == [phase.context.span_id] * 2


class Once:
    """A writer of no stream: its commit is told no batch."""

    def write(self, iterator):
        pass

    def commit(self, messages):
        pass

    abort = commit


class Traced(Plain):
    def open(self):
        return {}


REFUSED = [
    ({}, type("Other", (), {"open": lambda self: None}), "no phase of a sink"),
    ({"comit": "publish"}, Plain, "no such phase"),
    ({}, Once, "a commit takes no batch id"),
    ({"per_record": True}, Once, "per_record is for invoke"),
    ({"begin": "open"}, traced_sink(Traced), "a class is traced already"),
    *(({}, wrong, "above a class only") for wrong in ("begin", lambda: None, Plain())),
]


@pytest.mark.parametrize(("how", "what", "why"), REFUSED)
def test_what_cannot_be_decorated_is_refused(how, what, why):
    """With a message that shows how it is written."""
    with pytest.raises(ContractError, match=TEXTS[why]):
        (traced_sink(**how) if how else traced_sink)(what)


def test_a_drivers_own_context_may_have_a_transaction_id(exported):
    """So that a trace can be found by it, without our coordinator."""

    class Context:
        transaction_id = "b-7"

    class Odd:
        @property
        def transaction_id(self):
            raise RuntimeError("mine")

    @traced_sink
    class Mine(Plain):
        def begin(self, context):
            return {}

    for context in (Context(), Odd(), {"transaction_id": 1}):
        Mine().begin(context)
    found = [s.attributes.get("tpc.transaction.id") for s in exported()]
    assert found == ["b-7", None, None]
