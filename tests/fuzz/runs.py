"""Cases, sent one after the other to a participant that must live through all."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from support.waiting import AT_LAST

from fuzz import victim
from fuzz.bodies import Case
from fuzz.victim import Outcome

SILENT = f"no answer within {AT_LAST:g} s"
ENOUGH = 10
"""Processes that end in one run."""

MOST_MEMORY = 1 << 30
"""Bytes that no case may need, all libraries included."""


class Fault(NamedTuple):
    """A case that did what no case may do."""

    case: Case
    why: str


class Victim:
    """A participant in another process."""

    def __init__(self, kind: str, url: str | None) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=victim.serve, args=(theirs, kind, url))
        self._process.start()
        theirs.close()

    def fault(self, case: Case) -> str | None:
        """Send a case; say what was wrong with what came of it."""
        try:
            self._ours.send(case)
            if not self._ours.poll(AT_LAST):
                return SILENT
            outcome: Outcome = self._ours.recv()
        except (EOFError, ConnectionError):
            self._process.join(AT_LAST)
            return f"the process ended: {self._process.exitcode}"
        return _judge(case, outcome)

    def alive(self) -> bool:
        return self._process.is_alive()

    def end(self) -> tuple[int, int]:
        """Let it end; return its process id, and how much memory it took at most."""
        self._ours.send(None)
        pid, peak = self._ours.recv()
        assert pid == self._process.pid
        return pid, peak

    def close(self) -> None:
        self._ours.close()
        self._process.kill()
        self._process.join(AT_LAST)


def faults(kind: str, cases: Iterable[Case], url: str | None = None) -> Iterator[Fault]:
    """Send cases to a participant; a process that ends is started again."""
    target, ended = Victim(kind, url), 0
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: target.close())
        for case in cases:
            if why := target.fault(case):
                yield Fault(case, why)
                if target.alive() and why != SILENT:
                    continue
                target.close()
                ended += 1
                if ended == ENOUGH:
                    return
                target = Victim(kind, url)
        _, peak = target.end()
        if peak > MOST_MEMORY:
            yield Fault(case, f"at some time the process took {peak >> 20} MiB")


def _judge(case: Case, outcome: Outcome) -> str | None:
    if outcome.status >= 500:
        return f"answered {outcome.status}: {outcome.text[:200]}"
    if outcome.effect not in {None, case.rows}:
        return f"a success of {case.rows} rows, of which {outcome.effect} are there"
    return None
