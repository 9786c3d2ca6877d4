"""A participant under test: a Flask client, and what happens inside of it."""

from __future__ import annotations

import contextlib
import copy
import http.server
import io
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import sqlalchemy as sa
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from support.branches import ONE, TRACE, Branch
from support.files import FilePlace
from support.served import StandIn, served
from support.waiting import AT_LAST, until
from tracing_2pc.http.server import participant_blueprint
from tracing_2pc.outbox import Outbox


class World:
    """A participant in this process, and a client of it.

    A 503 is asked again, as clients do: where a machine stalls, a participant gives up
    waiting for a lock. A test that is about the 503 says `once`.

    Args:
        resource: what it holds data with.
        visible: counts the records that a reader of it sees.
        options: for the blueprint.
    """

    def __init__(
        self, resource: Any, visible: Callable[[], int], **options: Any
    ) -> None:
        self.resource = resource
        self.visible = visible
        self.name: str | None = "participant"
        self.journal: str | None = None
        app = Flask("participant")
        options = options or {"insecure": True}
        app.register_blueprint(participant_blueprint(resource, **options))
        self.app = app

    @property
    def client(self) -> FlaskClient:
        client = self.app.test_client()
        if self.name is not None:
            client.environ_base["HTTP_TPC_PARTICIPANT"] = self.name
        if self.journal is not None:
            client.environ_base["HTTP_TPC_JOURNAL"] = self.journal
        return client

    def called(self, name: str | None) -> World:
        """Return it as somebody asks it who calls it so; None says no name."""
        other = copy.copy(self)
        other.name = name
        return other

    def meant(self, journal: str) -> World:
        """Return it as somebody asks it who means the journal of this id."""
        other = copy.copy(self)
        other.journal = journal
        return other

    def prepare(
        self,
        transaction: str,
        branch: Branch = ONE,
        *,
        once: bool = False,
        **changes: Any,
    ) -> TestResponse:
        headers = {
            "Tpc-Version": "1",
            "Tpc-Transaction-Id": transaction,
            "Tpc-Branch": branch.branch,
            "Tpc-Rows": str(branch.rows),
            "Content-Digest": branch.digest,
            "Content-Type": branch.content_type,
            **TRACE,
        }
        headers |= changes.pop("headers", {})
        headers = {name: value for name, value in headers.items() if value is not None}
        request = {"data": branch.body, "headers": headers, **changes}
        return _answer(lambda: self.client.post("/prepare", **request), once)

    def commit(
        self,
        transaction: str,
        *branches: Branch,
        forgotten_through: int | None = None,
        headers: Mapping[str, str] | None = None,
        once: bool = False,
    ) -> TestResponse:
        order = {
            "transaction_id": transaction,
            "branches": [branch.named for branch in branches],
            "forgotten_through": forgotten_through,
        }
        return _answer(lambda: self.post("/commit", headers, **order), once)

    def abort(
        self, transaction: str, *, once: bool = False, **fields: Any
    ) -> TestResponse:
        order = {"transaction_id": transaction, **fields}
        return _answer(lambda: self.post("/abort", **order), once)

    def resolve(
        self, transaction: str, outcome: str, *, once: bool = False
    ) -> TestResponse:
        why = {"outcome": outcome, "reason": "no log knows it"}
        order = {"transaction_id": transaction, **why}
        return _answer(lambda: self.post("/resolve", **order), once)

    def show(self, transaction: str) -> TestResponse:
        return self.client.get(f"/transactions/{transaction}")

    def post(
        self, route: str, headers: Mapping[str, str] | None = None, **fields: Any
    ) -> TestResponse:
        sent = {"Tpc-Version": "1", **(headers or {})}
        return self.client.post(route, json=fields, headers=sent)

    def listed(self, query: str = "") -> list[tuple[str, str, str]]:
        page = self.client.get(f"/transactions{query}").get_json()["transactions"]
        return [(t["transaction_id"], t["branch"], t["state"]) for t in page]

    def in_doubt(self) -> int:
        return len(self.listed("?state=prepared"))

    @contextlib.contextmanager
    def writing(
        self, transaction: str, branch: Branch = ONE, **changes: Any
    ) -> Iterator[Upload]:
        """Hold a prepare in the middle of its upload, as of one that is large."""
        upload = Upload(self, transaction, branch, changes)
        try:
            yield upload
        finally:
            upload.finish()


def _answer(ask: Callable[[], TestResponse], once: bool) -> TestResponse:
    if once:
        return ask()
    return until(
        ask, lambda answer: answer.status_code != 503, tell=lambda answer: answer.text
    )


class Upload:
    """A prepare whose body arrives when the test says so; to it, the body is large."""

    def __init__(
        self,
        world: World,
        transaction: str,
        branch: Branch,
        changes: dict[str, Any],
        *,
        large: bool = True,
        first: int = -8,
    ) -> None:
        self._rest = threading.Event()
        self._arrived = threading.Event()
        self._parts = [branch.body[:first], branch.body[first:]]
        self._answer: list[TestResponse] = []
        stream = io.BufferedReader(_Slow(self))  # type: ignore[type-var]
        length = str(len(branch.body))
        changes |= {
            "data": None,
            "environ_overrides": {"wsgi.input": stream, "CONTENT_LENGTH": length},
        }
        self._thread = threading.Thread(
            target=lambda: self._answer.append(
                world.prepare(transaction, branch, once=True, **changes)
            )
        )
        with streaming(world) if large else contextlib.nullcontext():
            self._thread.start()
            assert self._arrived.wait(AT_LAST), "it was answered before it was read"

    @property
    def is_open(self) -> bool:
        """Whether it is still in the middle: what was answered did not wait for it."""
        return not (self._rest.is_set() or self._answer)

    def next_part(self) -> bytes:
        if len(self._parts) == 1:
            self._arrived.set()
            assert self._rest.wait(AT_LAST)
        return self._parts.pop(0) if self._parts else b""

    def let_go(self) -> None:
        """Let the rest of the body arrive."""
        self._rest.set()

    def break_off(self) -> TestResponse:
        """Hang up before all of it was sent."""
        self._parts.clear()
        return self.finish()

    def finish(self) -> TestResponse:
        """Let the rest of the body arrive, and return the answer."""
        self.let_go()
        self._thread.join(AT_LAST)
        return self._answer[0]


class _Slow(io.RawIOBase):
    def __init__(self, upload: Upload) -> None:
        self._upload = upload
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._left = self._left or self._upload.next_part()
        piece, self._left = self._left[: len(buffer)], self._left[len(buffer) :]
        buffer[: len(piece)] = piece
        return len(piece)


def store_of(world: World) -> Any:
    """What holds the rows of a participant: no request shows how it is done."""
    return world.resource._store


def journal_of(world: World) -> Any:
    """What it knows of transactions: to come between, or to spoil what is stored."""
    return world.resource._journal


def database_of(made: World | Any) -> Any:
    """The connections of a participant, to listen to them or to read beside it."""
    return getattr(made, "resource", made)._database


@contextlib.contextmanager
def streaming(world: World) -> Iterator[None]:
    """Let it take each body for one that is too large to be in memory."""
    database = database_of(world)
    database.most_in_memory = 0
    try:
        yield
    finally:
        del database.most_in_memory


@contextlib.contextmanager
def writing_rows(world: World, meanwhile: Callable[[], object]) -> Iterator[list[int]]:
    """Do something while a prepare has written its rows, and not yet looked again.

    It yields how many rows each prepare has written so far.
    """
    place = getattr(store_of(world), "_place", None)
    writer = place if isinstance(place, FilePlace) else database_of(world)
    load, written = writer.load, []

    def write(*about: Any, **how: Any) -> int:
        rows: int = load(*about, **how)
        written.append(rows)
        meanwhile()
        return rows

    writer.load = write
    try:
        yield written
    finally:
        del writer.load


def failed(statement: str) -> sa.exc.OperationalError:
    """Make the error of a database that does not answer."""
    return sa.exc.OperationalError(statement, {}, Exception("the server was restarted"))


@contextlib.contextmanager
def refusing(made: World | Any, part: str) -> Iterator[None]:
    """Let each statement fail that has this in it."""

    def execute(_: Any, __: Any, statement: str, about: Any, *___: Any) -> None:
        if part in f"{statement} {about}":
            raise failed(statement)

    engine = database_of(made).engine
    sa.event.listen(engine, "before_cursor_execute", execute)
    try:
        yield
    finally:
        sa.event.remove(engine, "before_cursor_execute", execute)


def outgoing_of(world: World) -> Any:
    """What an outbox has to send, to do in the place of its sender."""
    return world.resource._outgoing


def turns_of(world: World) -> Any:
    """What sends in an outbox: a test takes its turns itself, or has another begin."""
    return world.resource._turns


def end(outbox: Outbox) -> None:
    """Close it when its sender has ended; `close` itself waits for a lease only.

    Where much else runs, a sender can need longer, and come back with a connection
    that nobody closes.
    """
    outbox._turns.stop()
    if thread := outbox._turns._thread:
        thread.join(AT_LAST)
        assert not thread.is_alive()
    outbox.close()


def no_sender(_: Outbox) -> None:
    """For `Outbox.start`: it would bring a session back to a pool that was left."""


def close(world: World) -> None:
    """Close it; an outbox, when its sender has ended."""
    if isinstance(world.resource, Outbox):
        end(world.resource)
    else:
        world.resource.close()


def keep(world: World, transaction: str, branch: Branch) -> None:
    """Prepare and commit."""
    assert world.prepare(transaction, branch).status_code == 200
    assert world.commit(transaction, branch).status_code == 200


def refusal(
    world: World, branch: Branch, transaction: str = "orders.2.1", status: int = 409
) -> str:
    """Return why a branch is refused, which is a vote to abort."""
    answer = world.prepare(transaction, branch)
    told = answer.get_json()
    assert (answer.status_code, told.get("vote")) == (status, "abort"), told
    return str(told["detail"])


def count(resource: Any, table: str) -> int:
    """Count what a reader sees; a table that does not exist yet is empty."""
    with database_of(resource).read() as connection:
        if not sa.inspect(connection).has_table(table):
            return 0
        return int(
            connection.execute(sa.text(f"SELECT count(*) FROM {table}")).scalar()
        )


def select(resource: Any, sql: str) -> list[tuple[Any, ...]]:
    """Read what a reader reads."""
    with database_of(resource).read() as connection:
        return [tuple(row) for row in connection.execute(sa.text(sql))]


def rows_table(world: World) -> str:
    """Return the name of the table that holds the records."""
    store = store_of(world)
    name: str = getattr(store, "_place", store)._table.name
    return name


class PartnerApi:
    """An outside company's API: remembers what it got, answers what it is told."""

    def __init__(self) -> None:
        self.got: list[tuple[str, dict[str, str], Any]] = []
        self.answers: list[int] = []
        partner = self

        class Handler(StandIn):
            def do_POST(self) -> None:  # noqa: N802 - as http.server has it
                body = json.loads(self.body())
                partner.got.append((self.path, dict(self.headers), body))
                self.answer(partner.answers.pop(0) if partner.answers else 200)

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{server.server_port}"
        self._serving = contextlib.ExitStack()
        self._serving.enter_context(served(server))

    def close(self) -> None:
        self._serving.close()
