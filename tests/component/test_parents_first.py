"""A span is handed on after its parent, and nothing waits for ever."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer
from support.waiting import AT_LAST

from tracing_2pc.tracing.sdk import parents_first
from tracing_2pc.tracing.sdk.parents_first import ParentsFirst
from tracing_2pc.tracing.spans import SCOPE


class World:
    """A provider, and the names of what it has handed on, in that order."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.processor = ParentsFirst(SimpleSpanProcessor(self._exporter))
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(self.processor)

    @property
    def tracer(self) -> Tracer:
        return self.provider.get_tracer(SCOPE)

    def out(self) -> list[str]:
        return [span.name for span in self._exporter.get_finished_spans()]


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.provider.shutdown()


def test_a_child_waits_for_its_parent(world):
    """A process that dies here leaves nothing whose parent was never sent."""
    opened = world.tracer.start_as_current_span
    with opened("branch"):
        with opened("prepare"):
            world.tracer.start_span("POST").end()
            assert world.out() == []
        world.tracer.start_span("commit").end()
        assert world.out() == []
    assert world.out() == ["branch", "prepare", "POST", "commit"]


def test_a_parent_that_has_ended_holds_nothing_back(world):
    """Ended early and still current, as `tpc.deliver` is."""
    with world.tracer.start_as_current_span("deliver", end_on_exit=False) as deliver:
        deliver.end()
        world.tracer.start_span("commit").end()
        assert world.out() == ["deliver", "commit"]


def test_a_programs_own_span_holds_nothing_back(world):
    """It may be around a whole job: what happens inside is seen."""
    theirs = world.provider.get_tracer("job")
    with theirs.start_as_current_span("main"):
        world.tracer.start_span("done").end()
        assert world.out() == ["done"]
    assert world.out() == ["done", "main"]


@pytest.mark.parametrize("happens", ["a flush", "a span below it"])
def test_a_parent_that_is_open_for_too_long_hides_nothing(world, monkeypatch, happens):
    """What is stuck is seen as soon as anything happens; else at the next flush."""
    later = time.time_ns() + parents_first.PATIENCE + 10**9
    with world.tracer.start_as_current_span("stuck"):
        world.tracer.start_span("early").end()
        world.provider.force_flush()
        assert world.out() == []
        monkeypatch.setattr(parents_first.time, "time_ns", lambda: later)
        if happens == "a flush":
            world.provider.force_flush()
        else:
            world.tracer.start_span("late").end()
        assert world.out() == ["early", "late"][: 1 + (happens != "a flush")]


def test_a_span_that_garbage_ends_stops_nothing(world, monkeypatch):
    """A collection runs where it likes, also in the middle of a start."""
    lost = world.tracer.start_span("lost")

    class Collected(parents_first._OpenParent):
        def __init__(self, since: int) -> None:
            super().__init__(since)
            if world.out() == []:
                lost.end()

    monkeypatch.setattr(parents_first, "_OpenParent", Collected)
    done = threading.Thread(
        target=lambda: world.tracer.start_span("next").end(), daemon=True
    )
    done.start()
    done.join(AT_LAST)
    assert not done.is_alive()
    assert world.out() == ["lost", "next"]


def test_what_waits_at_the_end_is_exported(world):
    """A program that ends inside of a span loses no other."""
    with world.tracer.start_as_current_span("main"):
        world.tracer.start_span("done").end()
        world.provider.shutdown()
        assert world.out() == ["done"]


def test_spans_that_never_end_are_forgotten(world, monkeypatch):
    """They keep neither memory nor what was below them."""
    monkeypatch.setattr(parents_first, "BOUND", 8)
    opened = world.tracer.start_as_current_span
    with opened("first", end_on_exit=False), opened("below"):
        pass
    for _ in range(20):
        world.tracer.start_span("never")
    assert world.out() == ["below"]


def test_many_threads_lose_nothing(world):
    """Children end in threads of their own while their parent ends."""

    def child() -> None:
        context = parents_first_context
        for _ in range(200):
            world.tracer.start_span("child", context).end()

    from opentelemetry import trace

    parent = world.tracer.start_span("parent")
    parents_first_context = trace.set_span_in_context(parent)
    threads = [threading.Thread(target=child) for _ in range(4)]
    for thread in threads:
        thread.start()
    parent.end()
    for thread in threads:
        thread.join()
    assert sorted(world.out()) == ["child"] * 800 + ["parent"]


def test_a_forked_child_sends_no_second_copy(world):
    """What was open at the fork is the parent process's, and what waits for it too."""
    read, write = os.pipe()
    with world.tracer.start_as_current_span("parent"):
        world.tracer.start_span("before").end()
        if os.fork() == 0:
            world.tracer.start_span("in child").end()
            os.write(write, ",".join(world.out()).encode())
            os._exit(0)
        os.wait()
    assert os.read(read, 100) == b"in child"
    assert world.out() == ["parent", "before"]
