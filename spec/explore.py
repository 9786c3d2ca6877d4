"""Look at every world that can come to be, the nearest first, and hold the promises."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from spec.protocol import Protocol, World, broken, first, unfinished


class Found(NamedTuple):
    """What an exploration has found.

    Args:
        worlds: how many were looked at.
        fault: the promise that does not hold; empty: all hold in all of them.
        story: how it came to that, the shortest way.
        is_whole: whether there are no others.
    """

    worlds: int
    fault: str = ""
    story: tuple[str, ...] = ()
    is_whole: bool = True


def explore(protocol: Protocol, most: int, *, ends: bool = True) -> Found:
    """Look at all worlds within the bounds, or at so many.

    Args:
        protocol: what can happen.
        most: worlds to look at.
        ends: whether that everything ends is a promise, too.
    """
    start = first(protocol.bounds)
    came: _Came = {start: None}
    look = _Ends(protocol).stuck if ends else lambda _: ("", ())
    waiting = deque([start])
    while waiting:
        world = waiting.popleft()
        if fault := broken(world):
            return Found(len(came), fault, _story(came, world))
        fault, more = look(world)
        if fault:
            return Found(len(came), fault, (*_story(came, world), *more))
        for step in protocol.steps(world):
            if step.world not in came:
                came[step.world] = world, step.story
                waiting.append(step.world)
        if len(came) > most:
            return Found(len(came), is_whole=False)
    return Found(len(came))


_Came = dict[World, tuple[World, str] | None]


class _Ends:
    """Lets no fault happen any more, and sees whether all comes to its end.

    One way is tried from each world: other ways lead through worlds that are looked at
    for themselves.
    """

    def __init__(self, protocol: Protocol) -> None:
        self._protocol = protocol
        self._known: set[World] = set()

    def stuck(self, world: World) -> tuple[str, tuple[str, ...]]:
        """Say what never ends, and what happens until then; empty: all ends."""
        path: dict[World, str] = {}
        while world not in self._known:
            if world in path:
                return "stuck: it goes round and round", tuple(path.values())
            for step in self._protocol.steps(world):
                if not step.is_fault and step.world != world:
                    path[world] = step.story
                    world = step.world
                    break
            else:
                if fault := unfinished(world, self._protocol.bounds.batches):
                    return fault, tuple(path.values())
                self._known.add(world)
        self._known.update(path)
        return "", ()


def _story(came: _Came, world: World) -> tuple[str, ...]:
    lines = []
    while (before := came[world]) is not None:
        world, line = before
        lines.append(line)
    return tuple(reversed(lines))
