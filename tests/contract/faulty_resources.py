"""Resources with a hidden fault each; `test_resource_contract.py` runs the kit on them.

`fails` is the test that names the fault. Without a module's name that pytest looks for.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tracing_2pc.core import content
from tracing_2pc.core.model import BranchId
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

    def visible(self, where: Path) -> Iterable[Mapping[str, Any]]:
        return select(f"sqlite:///{where}/participant.db", self.reads)


class TestVotesFromMemory(Case):
    """It writes a branch when it commits, and keeps it in memory until then."""

    class VotesFromMemory(TaggedRows):
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

    resource = VotesFromMemory
    fails = "test_a_vote_is_kept"


class TestShowsWhatIsPrepared(Case):
    """Its readers read the table, and not the view."""

    reads = "orders_tpc"
    fails = "test_prepared_rows_are_invisible"


class TestCommitsAll(Case):
    """A commit takes what is prepared for what is named."""

    class CommitsAll(TaggedRows):
        def commit(self, order: Order) -> Answer:
            with self._reading() as connection:
                row = self._journal.read(connection, order.transaction)
            known = tuple(b.ref for b in row.branches.values())
            return super().commit(dataclasses.replace(order, branches=known))

    resource = CommitsAll
    fails = "test_a_commit_shows_what_it_names"


class TestAcknowledgesUnknown(Case):
    """It acknowledges a commit of what it has lost."""

    class AcknowledgesUnknown(TaggedRows):
        def commit(self, order: Order) -> Answer:
            answer = super().commit(order)
            if answer.refusal is Refusal.UNKNOWN:
                return Answer("committed")
            return answer

    resource = AcknowledgesUnknown
    fails = "test_a_commit_of_something_unknown_is_refused"


class TestLeavesNoTombstone(Case):
    """An abort of what it does not know leaves nothing."""

    class LeavesNoTombstone(TaggedRows):
        def abort(self, order: Order) -> Answer:
            if self.show(order.transaction, None).refusal is Refusal.UNKNOWN:
                return Answer("aborted")
            return super().abort(order)

    resource = LeavesNoTombstone
    fails = "test_an_abort_of_something_unknown_is_remembered"


class TestForgetsTheCommittedAttempt(Case):
    """It does not see that another attempt of the batch is committed."""

    class ForgetsTheCommittedAttempt(TaggedRows):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            read = self._journal.read

            def read_less(*asked: Any) -> Any:
                return dataclasses.replace(read(*asked), committed=None)

            self._journal.read = read_less  # type: ignore[method-assign]

    resource = ForgetsTheCommittedAttempt
    fails = "test_a_batch_is_committed_once"


class TestListsItsOwnOnly(Case):
    """It lists what this process has prepared."""

    class ListsItsOwnOnly(TaggedRows):
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

    resource = ListsItsOwnOnly
    fails = "test_the_list_is_complete"


class TestTakesTheLastForgottenThrough(Case):
    """It keeps the `forgotten_through` that it was told last."""

    class TakesTheLast(TaggedRows):
        def commit(self, order: Order) -> Answer:
            if order.forgotten_through is not None:
                a = self._journal.tables.application
                name = order.transaction.application
                with self._database.note(name) as connection:
                    update = a.update().where(a.c.application == name)
                    connection.execute(
                        update.values(forgotten_through=order.forgotten_through)
                    )
            return super().commit(order)

    resource = TakesTheLast
    fails = "test_forgotten_through_never_falls"


class TestBelievesTheDigest(Case):
    """It does not read the digest of what has arrived."""

    class BelievesTheDigest(TaggedRows):
        def prepare(self, *request: Any) -> Answer:
            request[3].verify = lambda: None
            return super().prepare(*request)

    resource = BelievesTheDigest
    fails = "test_a_body_that_is_not_whole_is_refused[digest]"


class TestDoesNotLookAgain(Case):
    """It votes without a look at what was decided while the body arrived."""

    class DoesNotLookAgain(TaggedRows):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self._store.look_again = lambda _, upload: Answer(  # type: ignore[method-assign]
                "prepared", fields={"vote": "commit", "rows": upload.ref.rows}
            )

    resource = DoesNotLookAgain
    fails = "test_an_abort_comes_while_a_body_arrives"


class TestAbortsInMemory(Case):
    """It acknowledges an abort, and writes it only with the next prepare."""

    class AbortsInMemory(TaggedRows):
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

    resource = AbortsInMemory
    fails = "test_an_abort_drops_all_branches"


class TestCommitsInTwoSteps(Case):
    """It shows each branch in a step of its own: a kill leaves one, and it is lost."""

    class CommitsInTwoSteps(TaggedRows):
        def commit(self, order: Order) -> Answer:
            with self._database.note(order.transaction.application) as connection:
                b = self._journal.tables.branch
                of = b.c.application == order.transaction.application
                named = [str(ref.branch) for ref in order.branches]
                rows = connection.execute(sa.select(b).where(of)).all()
                for row in rows:
                    branch = BranchId(row.partition, row.task_attempt)
                    if str(branch) in named and row.sealed is None:
                        hidden = self._store._hidden  # type: ignore[attr-defined]
                        connection.execute(
                            hidden.delete().where(hidden.c.tag == row.tag)
                        )
            return super().commit(order)

    resource = CommitsInTwoSteps
    fails = "test_a_commit_is_all_or_nothing[unknown]"
