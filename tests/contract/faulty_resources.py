"""Resources with a hidden fault each; `test_resource_contract.py` runs the kit on them.

`fails` is the test that names the fault. Without a module's name that pytest looks for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tracing_2pc.core import content
from tracing_2pc.core.errors import RefusalError
from tracing_2pc.core.model import BranchId, RejectedRow
from tracing_2pc.core.states import Refusal
from tracing_2pc.participant import TaggedRows
from tracing_2pc.participant.answers import Answer
from tracing_2pc.participant.body import Body
from tracing_2pc.participant.engine import Order, Page
from tracing_2pc.testing import ResourceContract


def select(url: str, table: str, columns: str = "id, amount") -> list[dict[str, Any]]:
    """Read what a reader reads, with a connection of its own."""
    engine = sa.create_engine(url)
    try:
        with engine.connect() as connection:
            if not sa.inspect(connection).has_table(table):
                return []
            found = connection.execute(sa.text(f"SELECT {columns} FROM {table}"))
            return [dict(row) for row in found.mappings()]
    finally:
        engine.dispose()


class Case(ResourceContract):
    """The kit, for resources of this file."""

    resource: type[TaggedRows] = TaggedRows
    fails = ""
    reads = "orders"

    def make_resource(self, where: Path) -> TaggedRows:
        return self.resource(f"sqlite:///{where}/participant.db", "orders")

    def refused(self, where: Path) -> Mapping[str, Any]:
        columns = "id bigint CHECK (id >= 0) UNIQUE, amount double, tpc_tag bigint"
        with contextlib.closing(sqlite3.connect(where / "participant.db")) as database:
            database.execute(f"CREATE TABLE orders_tpc ({columns} NOT NULL)")
        return {"id": -1, "amount": 0.0}

    def visible(self, where: Path) -> Iterable[Mapping[str, Any]]:
        return select(f"sqlite:///{where}/participant.db", self.reads)


def fails(test: str) -> Callable[[type[TaggedRows]], type[TaggedRows]]:
    """Make a case, `Test` and its name, of a resource that fails this."""

    def add(resource: type[TaggedRows]) -> type[TaggedRows]:
        about = {"resource": resource, "fails": test, "__module__": __name__}
        name = f"Test{resource.__name__}"
        globals()[name] = type(name, (Case,), about)
        return resource

    return add


@fails("test_a_vote_is_kept")
class VotesFromMemory(TaggedRows):
    """It writes a branch when it commits, and keeps it in memory until then."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.kept: dict[Any, Any] = {}

    def prepare(self, *request: Any) -> Answer:
        transaction, _, ref, body, _ = request
        copy = body.read()
        self.kept[transaction, ref.branch] = request, copy
        vote = {"vote": "commit", "branch": str(ref.branch)}
        return Answer("prepared", fields=vote)

    def commit(self, order: Order) -> Answer:
        for ref in order.branches:
            if kept := self.kept.pop((order.transaction, ref.branch), None):
                (transaction, name, known, _, carrier), copy = kept
                stream = io.BytesIO(copy)
                again = Body(stream, len(copy), content.ARROW, known.digest)
                super().prepare(transaction, name, known, again, carrier)
        return super().commit(order)


class TestShowsWhatIsPrepared(Case):
    """Its readers read the table, and not the view."""

    reads = "orders_tpc"
    fails = "test_prepared_rows_are_invisible"


class NamesEachRow(TaggedRows):
    """Whatever it refuses, and why, each row is to blame."""

    def prepare(self, *request: Any, **more: Any) -> Answer:
        _, _, ref, *_ = request
        try:
            return super().prepare(*request, **more)
        except RefusalError as error:
            error.rows = [RejectedRow(n, "", "bad") for n in range(ref.rows)]
            raise


@fails("test_a_row_that_is_refused_is_named")
class NamesTooMany(NamesEachRow):
    """Good rows, too."""


@fails("test_a_fault_of_the_schema_rejects_no_row")
class NamesForTheSchema(NamesEachRow):
    """A deployment empties the table."""


@fails("test_a_row_that_nobody_sees_rejects_none[another transaction]")
class SeesNoHiddenRows(TaggedRows):
    """It takes a row in doubt for one that is there to stay."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._store._not_shown = None  # type: ignore[attr-defined]


@fails("test_a_commit_shows_what_it_names")
class CommitsAll(TaggedRows):
    """A commit takes what is prepared for what is named."""

    def commit(self, order: Order) -> Answer:
        with self._reading() as connection:
            row = self._journal.read(connection, order.transaction)
        known = tuple(b.ref for b in row.branches.values())
        return super().commit(dataclasses.replace(order, branches=known))


@fails("test_a_commit_of_something_unknown_is_refused")
class AcknowledgesUnknown(TaggedRows):
    """It acknowledges a commit of what it has lost."""

    def commit(self, order: Order) -> Answer:
        answer = super().commit(order)
        if answer.refusal is Refusal.UNKNOWN:
            return Answer("committed")
        return answer


@fails("test_an_abort_of_something_unknown_is_remembered")
class LeavesNoTombstone(TaggedRows):
    """An abort of what it does not know leaves nothing."""

    def abort(self, order: Order) -> Answer:
        if self.show(order.transaction, None).refusal is Refusal.UNKNOWN:
            return Answer("aborted")
        return super().abort(order)


@fails("test_a_batch_is_committed_once")
class ForgetsTheCommittedAttempt(TaggedRows):
    """It does not see that another attempt of the batch is committed."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        read = self._journal.read

        def read_less(*asked: Any) -> Any:
            return dataclasses.replace(read(*asked), committed=None)

        self._journal.read = read_less  # type: ignore[method-assign]


@fails("test_the_list_is_complete")
class ListsItsOwnOnly(TaggedRows):
    """It lists what this process has prepared."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.own: set[Any] = set()

    def prepare(self, *request: Any) -> Answer:
        self.own.add(request[0])
        return super().prepare(*request)

    def list_open(self, query: Any) -> Page:
        page = super().list_open(query)
        own = [row for row in page.branches if row[0] in self.own]
        return dataclasses.replace(page, branches=own)


@fails("test_forgotten_through_never_falls")
class TakesTheLast(TaggedRows):
    """It keeps the `forgotten_through` that it was told last."""

    def commit(self, order: Order) -> Answer:
        if order.forgotten_through is not None:
            a = self._journal.tables.application
            name = order.transaction.application
            with self._database.relaxed(lock=name) as connection:
                update = a.update().where(a.c.application == name)
                connection.execute(
                    update.values(forgotten_through=order.forgotten_through)
                )
        return super().commit(order)


@fails("test_a_body_that_is_not_whole_is_refused[digest]")
class BelievesTheDigest(TaggedRows):
    """It does not read the digest of what has arrived."""

    def prepare(self, *request: Any) -> Answer:
        request[3].verify = lambda: None
        return super().prepare(*request)


@fails("test_an_abort_comes_while_a_body_arrives")
class DoesNotLookAgain(TaggedRows):
    """It votes without a look at what was decided while the body arrived."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        read, seen = self._journal.read, {}

        def read_once(connection: Any, *about: Any) -> Any:
            if len(about) > 1 and about not in seen:
                seen[about] = read(connection, *about)
            return seen.get(about) or read(connection, *about)

        self._journal.read = read_once  # type: ignore[method-assign]


@fails("test_an_abort_drops_all_branches")
class AbortsInMemory(TaggedRows):
    """It acknowledges an abort, and writes it only with the next prepare."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.later: dict[Any, Order] = {}

    def prepare(self, *request: Any) -> Answer:
        while self.later:
            super().abort(self.later.popitem()[1])
        return super().prepare(*request)

    def list_open(self, query: Any) -> Page:
        page = super().list_open(query)
        rest = [row for row in page.branches if row[0] not in self.later]
        return dataclasses.replace(page, branches=rest)

    def abort(self, order: Order) -> Answer:
        if self.show(order.transaction, None).state == "prepared":
            self.later[order.transaction] = order
            return Answer("aborted")
        return super().abort(order)


@fails("test_a_commit_is_all_or_nothing[unknown]")
class CommitsInTwoSteps(TaggedRows):
    """It shows each branch in a step of its own: a kill leaves one, and it is lost."""

    def commit(self, order: Order) -> Answer:
        with self._database.relaxed(lock=order.transaction.application) as connection:
            b = self._journal.tables.branch
            of = b.c.application == order.transaction.application
            named = [str(ref.branch) for ref in order.branches]
            rows = connection.execute(sa.select(b).where(of)).all()
            for row in rows:
                branch = BranchId(row.partition, row.task_attempt)
                if str(branch) in named and row.sealed is None:
                    hidden = self._store._hidden  # type: ignore[attr-defined]
                    connection.execute(hidden.delete().where(hidden.c.tag == row.tag))
        return super().commit(order)
