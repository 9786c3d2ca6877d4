"""The kit for authors of resources: ours keep its promises, and it finds each fault."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import faulty_resources
import pytest
import sqlalchemy as sa
from faulty_resources import Case, select
from support.files import Files
from support.kinds import sqlite_url
from support.programs import messages
from support.relay import Topic, TopicRelay

from tracing_2pc.core.errors import RefusalError
from tracing_2pc.embedded.addresses import read_address
from tracing_2pc.http.partner import HttpPartner
from tracing_2pc.outbox import Outbox
from tracing_2pc.outbox.records import Record
from tracing_2pc.outbox.relay import Message, read_block
from tracing_2pc.participant import PreparedTransactions, TaggedRows
from tracing_2pc.participant.engine import ParticipantEngine
from tracing_2pc.testing import ResourceContract

FAULTY = {
    name: case
    for name, case in vars(faulty_resources).items()
    if name.startswith("Test") and issubclass(case, Case)
}


def test_each_fault_is_found_by_the_test_that_names_it(tmp_path):
    """In one line, for the author."""
    named = {(name, case.fails) for name, case in FAULTY.items()}
    file = faulty_resources.__file__
    found = messages([f"{file}::{name}::{test}" for name, test in named], tmp_path)
    assert {name for name, message in found.items() if message} == named
    for message in found.values():
        assert len(message.splitlines()) == 1


def test_the_kit_needs_neither_spark_nor_flask():
    """An author of a resource has pytest and pyarrow."""
    code = (
        "import sys; from tracing_2pc.testing import ResourceContract; "
        "assert not {'pyspark', 'flask'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class OnSqlite(ResourceContract):
    """A file of each test's own."""

    @pytest.fixture
    def where(self, tmp_path) -> str:
        return sqlite_url(tmp_path)


class OnPostgresql(ResourceContract):
    """A database of each test's own."""

    @pytest.fixture
    def where(self, postgres_database) -> str:
        return postgres_database


class RefusesRows(ResourceContract):
    """A table that has a constraint, and ids that are not there twice."""

    key = "id bigint CHECK (id >= 0) UNIQUE"
    other = "amount double precision"
    of_table = "orders_tpc", ", tpc_tag bigint NOT NULL DEFAULT 0"

    def refused(self, where: str) -> Mapping[str, Any]:
        name, more = self.of_table
        engine = sa.create_engine(where)
        with engine.begin() as connection:
            statement = f"CREATE TABLE {name} ({self.key}, {self.other}{more})"
            connection.exec_driver_sql(statement)
        engine.dispose()
        return {**self.record(0), "id": -1}


class OfTaggedRows(RefusesRows):
    def make_resource(self, where: str) -> ParticipantEngine:
        return TaggedRows(where, "orders")

    def visible(self, where: str) -> Iterable[Mapping[str, Any]]:
        return select(where, "orders", "*")


class OfOutbox(ResourceContract):
    def make_resource(self, where: str) -> ParticipantEngine:
        return Outbox(where, HttpPartner("http://127.0.0.1:9/orders"))

    def visible(self, where: str) -> Iterable[Mapping[str, Any]]:
        """Read what is queued: nothing sends, because nothing calls `start`."""
        return [json.loads(text) for text in self.queued(where)]

    def queued(self, where: str) -> Iterable[str]:
        tags = {row["tag"] for row in select(where, "outbox_tpc_queue", "tag")}
        rows = select(where, "outbox_tpc", "tpc_tag, body")
        return [row["body"] for row in rows if row["tpc_tag"] in tags]


class TestTaggedRows(OfTaggedRows, OnSqlite):
    """Rows in the journal's own database."""


@pytest.mark.ci
class TestTaggedRowsOnPostgresql(OfTaggedRows, OnPostgresql):
    """The same, on a server."""


@pytest.mark.ci
class TestOutbox(OfOutbox, OnSqlite):
    """Requests to a partner."""


@pytest.mark.ci
class TestOutboxOnPostgresql(OfOutbox, OnPostgresql):
    """The same, on a server."""


@pytest.mark.ci
class TestRelay(OfOutbox, OnSqlite):
    """Messages for a broker."""

    def make_resource(self, where: str) -> ParticipantEngine:
        return Outbox(where, TopicRelay(Topic()))

    def refused(self, where: str) -> Mapping[str, Any]:
        return {**self.record(0), "amount": -1}

    def visible(self, where: str) -> Iterable[Mapping[str, Any]]:
        blocks = map(read_block, self.queued(where))
        return [json.loads(value) for block in blocks for _, _, value, _ in block]


class NamesNone(TopicRelay):
    """Says nothing of which record it cannot send."""

    def check(self, records: Iterable[Record]) -> Iterator[Message]:
        try:
            yield from super().check(records)
        except RefusalError as error:
            error.column = None
            raise


@pytest.mark.ci
class TestRelayThatNamesNone(TestRelay):
    """Its refusal is one of the branch."""

    names_rows = False

    def make_resource(self, where: str) -> ParticipantEngine:
        return Outbox(where, NamesNone(Topic()))


@pytest.mark.ci
class TestPreparedTransactions(RefusesRows, OnPostgresql):
    """Branches that are ended one by one.

    A second row of a key waits there for the first: its table has none.
    """

    key = "id bigint CHECK (id >= 0)"
    of_table = "orders", ""

    def make_resource(self, where: str) -> ParticipantEngine:
        return PreparedTransactions(where, "orders")

    def visible(self, where: str) -> Iterable[Mapping[str, Any]]:
        return select(where, "orders", "*")


class Embedded(RefusesRows):
    """As whoever asks a participant without a service opens it, by its address."""

    option = "table"

    def make_resource(self, where: str) -> ParticipantEngine:
        mark = "&" if "?" in where else "?"
        return read_address(f"{where}{mark}{self.option}=orders").open()

    def visible(self, where: str) -> Iterable[Mapping[str, Any]]:
        return select(where, "orders", "*")


@pytest.mark.ci
class TestEmbeddedTable(Embedded, OnSqlite):
    """A file."""


@pytest.mark.ci
class TestEmbeddedTableOnPostgresql(Embedded, OnPostgresql):
    """A server."""


@pytest.mark.ci
class TestEmbeddedPreparedTransactions(Embedded, OnPostgresql):
    """A plain table."""

    option = "into"
    key, of_table = TestPreparedTransactions.key, ("orders", "")


class OfLargeRows(ResourceContract):
    """Bodies of 5 MB: written while they arrive on PostgreSQL, spooled on SQLite."""

    other = "note text"

    def record(self, n: int) -> Mapping[str, Any]:
        return {"id": n, "note": f"{n} ".ljust(2_500_000, "x")}


@pytest.mark.ci
class TestLargeBranches(OfLargeRows, OfTaggedRows, OnPostgresql):
    """Rows in the journal's own database."""


@pytest.mark.nightly
class TestLargeBranchesOnSqlite(OfLargeRows, OfTaggedRows, OnSqlite):
    """The same, in a file."""


@pytest.mark.nightly
class TestLargePreparedTransactions(OfLargeRows, TestPreparedTransactions):
    """Branches that are ended one by one."""


@pytest.mark.ci
class TestFiles(ResourceContract):
    """A resource that a user could have written, on a `BranchPlace`."""

    def make_resource(self, where: Path) -> ParticipantEngine:
        return Files(sqlite_url(where), where / "files")

    def visible(self, where: Path) -> Iterable[Mapping[str, Any]]:
        files = [f for f in (where / "files").glob("*") if f.is_file()]
        lines = [line for file in files for line in file.read_text().splitlines()]
        return [json.loads(line) for line in lines]
