"""A participant in a process of its own, which takes whatever body it is sent."""

from __future__ import annotations

import itertools
import logging
import os
import resource
import tempfile
import warnings
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa
from support.branches import Branch, records
from support.kinds import KINDS, sqlite_url
from support.participant import end, keep, rows_table

from fuzz.bodies import Case
from tracing_2pc.outbox import Outbox
from tracing_2pc.participant import TaggedRows


class Outcome(NamedTuple):
    """What a participant made of a case."""

    status: int
    text: str
    effect: int | None
    """Records that a commit made visible; None if there was no vote for one."""


def serve(ours: Connection, kind: str, url: str | None) -> None:
    """Answer cases until there are no more; then say how much memory it took."""
    logging.disable()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        victim = _Victim(kind, url or sqlite_url(Path(folder)))
        while (case := ours.recv()) is not None:
            ours.send(victim.answer(case))
        victim.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    ours.send((os.getpid(), peak))


class _Victim:
    """Prepares each case in a table of its own, and commits what got a vote for it."""

    def __init__(self, kind: str, url: str) -> None:
        self._kind = kind
        self._url = url
        self._world = KINDS[kind](url)
        self._batches = itertools.count()

    def answer(self, case: Case) -> Outcome:
        self._forget_table()
        if case.number % 2:
            first = records("9.9", c0=[1], c1=["x"])
            keep(self._world, f"orders.{next(self._batches)}.1", first)
        before = self._world.visible()
        transaction = f"orders.{next(self._batches)}.1"
        branch = Branch(case.body, case.rows, content_type=case.content_type)
        answer = self._world.prepare(transaction, branch, once=True)
        effect = None
        if answer.status_code == 200 and case.rows:
            committed = self._world.commit(transaction, branch)
            effect = self._world.visible() - before
            assert committed.status_code == 200, committed.text
        return Outcome(answer.status_code, answer.text, effect)

    def _forget_table(self) -> None:
        """Begin again with no table; an outbox has none of the records' own."""
        if isinstance(self._world.resource, Outbox):
            return
        with self._world.resource._database.setup() as connection:
            if isinstance(self._world.resource, TaggedRows):
                connection.execute(sa.text("DROP VIEW IF EXISTS orders"))
            rows = rows_table(self._world)
            connection.execute(sa.text(f"DROP TABLE IF EXISTS {rows}"))
        self._world.resource.close()
        self._world = KINDS[self._kind](self._url)

    def close(self) -> None:
        if isinstance(self._world.resource, Outbox):
            end(self._world.resource)
        else:
            self._world.resource.close()
