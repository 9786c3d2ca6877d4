"""`@traced_sink` above a class leaves its place among other classes as it was."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any
from unittest import mock

import pytest
from support.traced_sink import Plain, shipped
from support.tracing import span_tree

from tracing_2pc.tracing.decorator.traced_sink import traced_sink


class Base:
    def __init__(self) -> None:
        self.called: list[str] = []

    def begin(self):
        return {}

    def commit(self, handle: Any) -> None:
        """Make it visible."""
        self.called.append("Base")


class Retrying(Base):
    def commit(self, handle: Any) -> None:
        self.called.append("Retrying")
        super().commit(handle)


@traced_sink
class Sink(Base):
    pass


class Mine(Sink, Retrying):
    pass


@pytest.mark.parametrize("tracing", ["on", "off"])
def test_a_mixin_comes_before_the_base(tracing, request):
    """Which method is next is Python's affair, with tracing and without."""
    spans = request.getfixturevalue("exported") if tracing == "on" else list
    sink = shipped(Mine())
    sink.commit({})
    assert sink.called == ["Retrying", "Base"]
    assert span_tree(spans()) == (["Mine.commit"] if tracing == "on" else [])


def test_a_patch_of_the_base_is_what_is_called():
    sink = shipped(Sink())
    with mock.patch.object(Base, "commit", lambda self, handle: self.called.append(1)):
        sink.commit({})
    assert sink.called == [1]


def test_an_inherited_phase_is_still_described():
    assert inspect.signature(Sink.commit) == inspect.signature(Base.commit)
    assert Sink.commit.__doc__ == "Make it visible."


def test_a_class_that_is_made_again_is_traced(exported):
    """`slots=True` above the decorator: another class, with the same methods."""

    @dataclasses.dataclass(slots=True)
    @traced_sink
    class Slots(Plain):
        url: str = "u"

    sink = shipped(Slots())
    sink.commit(sink.begin())
    assert span_tree(exported()) == ["Slots.begin", "  Slots.commit"]


def test_a_traced_class_may_be_named_again(exported):
    class Renamed(Plain):
        def open(self):
            return {}

    twice = traced_sink(begin="open")(traced_sink(begin="open")(Renamed))
    sink = shipped(twice())
    sink.commit(sink.open())
    assert span_tree(exported()) == ["Renamed.begin", "  Renamed.commit"]
