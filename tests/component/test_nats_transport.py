"""What counts as an answer over NATS, who may give one, and what others learn."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from flask import Flask, request
from support.branches import ONE, commit_of, prepare_at
from support.nats import TOKEN, shared
from support.texts import texts
from support.waiting import AT_LAST, AT_ONCE, PATIENT, SOON, until

from tracing_2pc.core.errors import ConfigurationError, ParticipantUnavailableError
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.remote_participant import open_participant
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import Decision, ParticipantState, Refusal, Vote
from tracing_2pc.http.server import participant_blueprint
from tracing_2pc.nats import NatsServer, client, frames, server
from tracing_2pc.nats.client import NatsParticipant
from tracing_2pc.nats.link import LOOP, Link
from tracing_2pc.operations.check import check
from tracing_2pc.participant import TaggedRows
from tracing_2pc.sinks import ParticipantSink
from tracing_2pc.wire import contract

ID = TransactionId("orders", 3, 1)
record = functools.partial(commit_of, ID, "ledger")
prepare = functools.partial(prepare_at, transaction=ID)
TEXTS = texts("component")
OTHER_TOKEN = TOKEN[::-1]


class Ledger:
    """A participant with tokens, and what its application was asked."""

    def __init__(self, folder: Path, name: str = "ledger") -> None:
        self.rows = TaggedRows(f"sqlite:///{folder / name}.db", table="orders")
        (folder / "tokens").write_text(f"job {TOKEN}\noperator {OTHER_TOKEN}\n")
        tokens = folder / "tokens"
        self.app = Flask(name)
        routes = participant_blueprint(self.rows, tokens=tokens, name=name)
        self.app.register_blueprint(routes)
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.app.before_request(
            lambda: self.asked.append((request.path, dict(request.headers)))
        )

    @contextlib.contextmanager
    def serving(self, url: str) -> Iterator[NatsServer]:
        with NatsServer(self.app, url) as server:
            until(lambda: server.is_connected)
            yield server


@pytest.fixture
def ledger(tmp_path) -> Iterator[Ledger]:
    made = Ledger(tmp_path)
    yield made
    made.rows.close()


@pytest.fixture(autouse=True)
def _hang_up() -> Iterator[None]:
    yield
    LOOP.close()


@pytest.fixture
def url(tmp_path) -> str:
    """A name of this test's own."""
    return shared().url(f"ledger_{tmp_path.name.replace('-', '_')}"[:40])


@pytest.fixture
def asked(monkeypatch, url) -> Callable[..., NatsParticipant]:
    """Return a participant as a job has it."""
    monkeypatch.setenv("TPC_TOKEN", TOKEN)
    monkeypatch.setenv("OPERATOR", OTHER_TOKEN)
    monkeypatch.setenv("WRONG", TOKEN.upper())

    def ask(
        token: str | None = "env:TPC_TOKEN",
        timeout: float = PATIENT,
    ) -> NatsParticipant:
        opened: Any = open_participant("ledger", url, token, timeout)
        assert isinstance(opened, NatsParticipant)
        return opened

    return ask


class Other:
    """Somebody else at the NATS server, in a thread: sees all, and may say anything."""

    def __init__(self, subject: str, queue: str = "") -> None:
        self.seen: list[Any] = []
        self.answer: Callable[[Any], bytes | None] = lambda message: None
        self.subject = subject
        self._about = subject, queue
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> Other:
        self._thread.start()
        self.run(self._listen())
        return self

    def __exit__(self, *exception: object) -> None:
        self.run(self._connection.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(AT_LAST)

    def publish(self, *about: Any) -> None:
        async def send() -> None:
            await self._connection.publish(*about)
            await self._connection.flush()

        self.run(send())

    async def _listen(self) -> None:
        self._connection = await nats.connect(shared().url("x").rpartition("/")[0])
        subject, queue = self._about
        await self._connection.subscribe(subject, queue=queue, cb=self._receive)
        await self._connection.flush()

    async def _receive(self, message: Any) -> None:
        self.seen.append(message)
        answer = self.answer(message)
        if answer is not None:
            await self._connection.publish(message.reply, answer)


def name_of(url: str) -> str:
    return url.rpartition("/")[2]


def question_of(message: Any) -> Any:
    return frames.Seal(None, "").read(message.data)[0]


COMMITTED = json.dumps({"transaction_id": str(ID), "state": "committed"})


def plain(message: Any) -> bytes:
    head = {"status": 200, "type": contract.JSON, "text": COMMITTED}
    return frames.Seal(None, "").write(head)


def offer(key: bytes) -> Callable[[Any], bytes]:
    """Return what offers an exchange by another key, and answers whatever comes."""

    def answer(message: Any) -> bytes:
        head = question_of(message)
        if "nonce" in head:
            found = {"challenge": "c", "subject": message.subject, "journal": "j"}
            return frames.seal_of_offer(key, head["nonce"]).write(found)
        about = {"n": 0, "status": 200, "type": contract.JSON, "length": len(COMMITTED)}
        return frames.Seal(None, "").write(about, COMMITTED.encode())

    return answer


IMPOSTORS = {
    "plain": plain,
    "with a key of its own": offer(frames.key_of(b"guessed")),
    "nonsense": lambda message: b"committed",
    "json that is no object": lambda message: b"- []\n",
}


@pytest.mark.parametrize("says", IMPOSTORS.values(), ids=IMPOSTORS)
def test_an_impostor_acknowledges_nothing(ledger, asked, url, says):
    """In the same queue group, answering *committed*: it counts for nothing."""
    with ledger.serving(url):
        assert prepare(asked()) is Vote.COMMIT
    with Other(f"tpc.v1.{name_of(url)}", name_of(url)) as impostor:
        impostor.answer = says

        def is_noticed() -> bool:
            with pytest.raises(ParticipantUnavailableError) as silent:
                asked(timeout=SOON).commit(record())
            assert silent.value.refusal is None
            return TEXTS["forged answers"] in str(silent.value)

        until(is_noticed)  # an answer may come too late to be seen
        assert impostor.seen
    with ledger.serving(url):
        assert asked().show(ID).state is ParticipantState.PREPARED
        asked().commit(record())
        assert asked().show(ID).state is ParticipantState.COMMITTED


def test_what_was_said_before_acknowledges_nothing(ledger, asked, url):
    """Somebody repeats what the participant said of the same commit, word by word."""
    with Other(">") as seen, ledger.serving(url):
        assert prepare(asked()) is Vote.COMMIT
        asked().commit(record())
        name = f"tpc.v1.{name_of(url)}"

        def said() -> list[bytes]:
            """Return what went to the inbox that the second question has named."""
            questions = [m.reply for m in seen.seen if m.subject == name]
            inbox = questions[1] if len(questions) > 1 else None
            return [m.data for m in seen.seen if m.subject == inbox] or [b""]

        # Whoever listens to all hears the answer a moment later; between the two it may
        # be said how much was read.
        offered, *_, answered = until(said, lambda heard: b'"status"' in heard[-1])
    with Other(name, name_of(url)) as first, Other(f"{name}.>") as second:
        first.answer = lambda message: offered
        second.answer = lambda message: answered
        with pytest.raises(ParticipantUnavailableError):
            asked(timeout=SOON).commit(record())
        until(lambda: first.seen)


@pytest.mark.parametrize("side", [(NatsServer, "_take"), (Link, "_receive")], ids=str)
def test_what_comes_twice_counts_once(ledger, asked, url, side, monkeypatch):
    """Somebody repeats each frame while it is new: bodies and answers are the same."""
    receive = getattr(*side)

    async def twice(self: Any, message: Any) -> None:
        await receive(self, message)
        await receive(self, message)

    monkeypatch.setattr(*side, twice)
    monkeypatch.setattr(frames, "CHUNK", 16)
    with ledger.serving(url):
        assert prepare(asked()) is Vote.COMMIT
        assert asked().show(ID).state is ParticipantState.PREPARED
        asked().commit(record())


def test_who_listens_learns_no_token(ledger, asked, url):
    """No token, digest or key goes over a server; nor a request to the name."""
    secret = [TOKEN.encode(), frames.key_of(client.digest_of(TOKEN)).hex().encode()]
    secret += [client.digest_of(TOKEN).hex().encode(), b"Bearer"]
    with Other(">") as seen, ledger.serving(url):
        assert prepare(asked()) is Vote.COMMIT
        asked().commit(record())
        sent = [message.data for message in seen.seen]
        names = [m for m in seen.seen if m.subject == f"tpc.v1.{name_of(url)}"]
    assert len(sent) > 6
    assert not [data for data in sent for word in secret if word in data]
    assert [sorted(question_of(m)) for m in names] == [["key", "look", "nonce"]] * 2


def test_what_is_repeated_by_another_does_nothing(ledger, asked, url):
    """Each frame that was heard, sent again by who heard it: nothing is asked anew."""
    with ledger.serving(url), Other(">") as other:
        assert prepare(asked()) is Vote.COMMIT
        asked("env:OPERATOR").resolve(ID, Decision.ABORT, "a try")
        before, heard = len(ledger.asked), list(other.seen)
        for message in heard:
            if message.subject.startswith("tpc."):
                other.publish(message.subject, message.data, message.reply)
        assert asked().show(ID).state is ParticipantState.ABORTED
        assert [path for path, _ in ledger.asked[before:]] == [f"/transactions/{ID}"]


@pytest.mark.parametrize("how", ["changed", "as another frame"])
def test_a_request_that_was_changed_is_not_obeyed(ledger, asked, url, how, monkeypatch):
    """Who stands between both changes a byte, or the order: the request is dropped."""
    take = NatsServer._take

    async def changed(server: NatsServer, message: Any) -> None:
        old, new = b"commit", b"abort!"
        if how == "as another frame":
            old, new = b'{"n": 0', b'{"n": 1'
        assert old in message.data
        message.data = message.data.replace(old, new)
        await take(server, message)

    monkeypatch.setattr(NatsServer, "_take", changed)
    with ledger.serving(url), pytest.raises(ParticipantUnavailableError):
        asked(timeout=SOON).commit(record())
    assert ledger.asked == []


def test_a_stranger_is_told_so_at_once(ledger, asked, url):
    """By the participant; it is no acknowledgement, and says what to set."""
    with ledger.serving(url), pytest.raises(ParticipantUnavailableError) as refused:
        asked("env:WRONG").commit(record())
    assert refused.value.refusal is Refusal.NOT_ADMITTED


def test_without_a_token_nothing_but_health_is_asked(ledger, asked, url):
    """Anybody could answer it. The job does not start, and is told what to set."""
    bare = asked(None)
    with Other(f"tpc.v1.{name_of(url)}", name_of(url)) as impostor:
        impostor.answer = plain
        for ask in (
            bare.identity,
            bare.prepared,
            lambda: prepare(bare),
            lambda: bare.commit(record()),
            lambda: bare.abort(record()),
            lambda: ParticipantSink({"ledger": url}, token=None).check("orders"),
        ):
            with pytest.raises(ConfigurationError, match=TEXTS["NATS needs a token"]):
                ask()
        assert impostor.seen == []
    with ledger.serving(url):
        described = bare.describe()
        assert (described.unreachable, described.sent) == (None, False)
        assert TEXTS["NATS needs a token"] in str(described.refused)


@pytest.mark.parametrize("lacks", ["method", "path", "headers", "length"])
def test_a_request_that_is_none_takes_nobodys_place(
    ledger, asked, url, lacks, monkeypatch
):
    """Of a stranger, who has all the places that there are."""
    monkeypatch.setattr(server, "_OPEN", 1)
    bare, subject = frames.Seal(None, ""), f"tpc.v1.{name_of(url)}"
    head = {"n": 0, "method": "GET", "path": "/whoami", "headers": {}, "length": 0}
    del head[lacks]
    inbox = f"inbox_{name_of(url)}"
    with ledger.serving(url) as instance, Other(inbox) as stranger:
        stranger.publish(subject, bare.write({"nonce": "n"}), inbox)
        until(lambda: stranger.seen)
        offered = bare.read(stranger.seen[0].data)[0]["subject"]
        stranger.publish(offered, bare.write(head), inbox)
        until(lambda: [e.received for e in instance._exchanges.values()] == [1])
        assert prepare(asked()) is Vote.COMMIT


BARE = frames.Seal(None, "")


class Stranger(Other):
    """Somebody without a token, who asks one instance what he likes."""

    def __init__(self, url: str) -> None:
        self.inbox = f"inbox_{name_of(url)}"
        super().__init__(self.inbox)
        self.subject = f"tpc.v1.{name_of(url)}"

    def ask(self, question: Any, inbox: str | None = None) -> None:
        self.publish(self.subject, BARE.write(question), inbox or self.inbox)

    def heard(self) -> list[dict[str, Any]]:
        return [BARE.read(message.data)[0] for message in self.seen]

    def offered(self) -> str:
        """Return the subject that a good question is answered."""
        self.ask({"nonce": "good"})
        until(lambda: self.seen)
        return str(self.heard()[0]["subject"])


@pytest.mark.parametrize(
    "question",
    [
        {"nonce": "n" * 65},
        {"nonce": "n" * (1 << 19)},
        {"nonce": "n", "more": "x" * 1000},
        {"nonce": 7},
        {"nonce": "n", "key": ["k"]},
        {"nonce": "n", "key": "k" * 65},
    ],
    ids=["a long word", "a huge word", "more", "no word", "no name", "a long name"],
)
def test_nothing_is_kept_of_a_question_that_is_too_long(ledger, url, question):
    """Nor of one that is none: nobody is answered, and the next one is."""
    with ledger.serving(url) as instance, Stranger(url) as stranger:
        stranger.ask(question)
        stranger.ask({"nonce": "n"}, "i" * 256)
        assert stranger.offered()
        assert len(instance._exchanges) == len(stranger.seen) == 1


def request_of(**changes: Any) -> dict[str, Any]:
    head = {"n": 0, "method": "GET", "path": "/whoami", "headers": {}, "length": 0}
    return head | changes


@pytest.mark.parametrize(
    ("head", "data"),
    [
        (request_of(headers={"x": "y" * frames.HEAD}), b""),
        (request_of(), b"x" * (frames.LONGEST + 1)),
    ],
    ids=["head", "data"],
)
def test_a_frame_that_is_too_long_is_none(ledger, url, head, data):
    """It is dropped before anything of it is kept."""
    with ledger.serving(url) as instance, Stranger(url) as stranger:
        subject = stranger.offered()
        stranger.publish(subject, BARE.write(head, data), stranger.inbox)
        stranger.publish(subject, BARE.write(request_of()), stranger.inbox)
        until(lambda: "status" in stranger.heard()[-1])
        assert [path for path, _ in ledger.asked] == ["/whoami"]
        assert instance._exchanges == {}


@pytest.mark.parametrize(
    "odd", [{"length": float("inf")}, {"headers": []}, {"method": None}, {"path": 1}]
)
def test_a_request_of_other_types_is_none(ledger, asked, url, odd, caplog):
    """It is dropped, and the instance goes on."""
    with ledger.serving(url), Stranger(url) as stranger:
        head = BARE.write(request_of(**odd))
        stranger.publish(stranger.offered(), head, stranger.inbox)
        assert prepare(asked()) is Vote.COMMIT
    assert caplog.records == []


@pytest.mark.parametrize("name", ["authorization", "Authorization", "AUTHORIZATION"])
def test_a_token_that_is_sent_is_not_taken(ledger, url, name):
    """However its header is written: a token must not go over a NATS server."""
    with ledger.serving(url), Stranger(url) as stranger:
        head = request_of(headers={name: f"Bearer {TOKEN}", "Tpc-Version": "1"})
        stranger.publish(stranger.offered(), BARE.write(head), stranger.inbox)
        until(lambda: "status" in stranger.heard()[-1])
        assert stranger.heard()[-1]["status"] == 401
    ((_, headers),) = ledger.asked
    assert "Authorization" not in headers


def test_nothing_is_kept_of_a_body_without_a_token(ledger, url, monkeypatch):
    """Frames of it may come: a stranger fills no memory with them."""
    kept: list[int] = []
    work = NatsServer._work

    def look(server: NatsServer, word: str, exchange: Any, request: Any) -> None:
        until(lambda: exchange.received == 9)
        kept.extend(map(len, iter(exchange.body._frames.get_nowait, b"")))
        exchange.body.shutdown()
        work(server, word, exchange, request)

    monkeypatch.setattr(NatsServer, "_work", look)
    with ledger.serving(url), Stranger(url) as stranger:
        subject = stranger.offered()
        head = request_of(method="POST", path="/prepare", length=1 << 20)
        for n in range(9):
            frame = BARE.write(head if n == 0 else {"n": n}, b"x" * 1000)
            stranger.publish(subject, frame, stranger.inbox)
        until(lambda: "status" in stranger.heard()[-1])
    assert kept == []


ODD = {
    "empty": {},
    "a status and no more": {"status": 401},
    "a status that is none": {"status": [], "type": "", "text": ""},
    "an offer of numbers": {"challenge": 1, "subject": 2, "journal": 3},
    "half an offer": {"challenge": "c", "journal": "j"},
}


@pytest.mark.parametrize("says", ODD.values(), ids=ODD)
def test_an_answer_of_another_form_is_none(asked, url, says):
    """Of somebody else at the server: no fault of ours, and nothing is sent there."""
    with Other(f"tpc.v1.{name_of(url)}") as impostor:
        impostor.answer = lambda message: BARE.write(says)
        with pytest.raises(ParticipantUnavailableError):
            asked(timeout=SOON).commit(record())
        assert asked(timeout=AT_ONCE).describe().unreachable


def test_a_question_about_health_goes_nowhere_else(asked, url):
    """Somebody names a subject that is not the participant's: nothing is sent there."""
    elsewhere = f"elsewhere_{name_of(url)}"
    with Other(f"tpc.v1.{name_of(url)}") as impostor, Other(elsewhere) as other:
        says = {"challenge": "c", "subject": elsewhere, "journal": "j"}
        impostor.answer = lambda message: BARE.write(says)
        assert asked(timeout=AT_ONCE).describe().unreachable
        assert other.seen == []


def test_without_tokens_nobody_is_served(ledger, url):
    """NATS does not show where a caller is: *this machine only* would be everybody."""
    app = Flask("ledger")
    app.register_blueprint(participant_blueprint(ledger.rows, insecure=True))
    with pytest.raises(ConfigurationError) as refused:
        NatsServer(app, url)
    assert TEXTS["insecure over NATS"] in str(refused.value)


@pytest.mark.parametrize(
    "wrong", ["nats://there:4222", "nats://there:4222/a/b", "nats://there/a.b"]
)
def test_a_url_that_names_no_participant_is_refused(wrong):
    """One name stands in its path: it becomes a subject."""
    with pytest.raises(ConfigurationError, match="expected nats://host:4222/part"):
        open_participant("ledger", wrong, None, PATIENT)


def test_two_databases_behind_one_name_are_refused(ledger, asked, url, tmp_path):
    """Nothing is sent to the other one; a job does not start, and `check` says it."""
    other = Ledger(tmp_path, "other")
    with ledger.serving(url):
        assert prepare(asked()) is Vote.COMMIT
    with other.serving(url), pytest.raises(ParticipantUnavailableError) as refused:
        asked().commit(record())
    assert refused.value.refusal is Refusal.MISDIRECTED
    assert TEXTS["two databases"] in str(refused.value)
    assert other.asked == []
    with ledger.serving(url), other.serving(url):
        with pytest.raises(ConfigurationError, match="2 databases answer"):
            asked().identity()
        assert "2 databases answer" in str(asked().describe().unready)
        found = check(Settings(participants={"ledger": url})).findings
        assert [f for f in found if "2 databases answer" in f.text]
    other.rows.close()


def test_bodies_and_answers_go_in_frames(ledger, asked, url, monkeypatch):
    """Whatever a NATS server takes at once; an answer that is too long is none."""
    monkeypatch.setattr(frames, "CHUNK", 16)
    with ledger.serving(url):
        assert prepare(asked()) is Vote.COMMIT
        assert len(ONE.body) > 16 * frames.WINDOW
        assert asked().show(ID).state is ParticipantState.PREPARED
        monkeypatch.setattr(contract, "MAX_SHOWN_BYTES", 16)
        with pytest.raises(ParticipantUnavailableError):
            asked().show(ID)


@pytest.mark.parametrize("breaks", ["ends early", "raises"])
def test_a_body_that_is_not_whole_is_not_prepared(ledger, asked, url, breaks):
    """Its bytes are counted; who cannot read on says so, and nobody waits."""

    class Torn(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            found = super().read(min(size or 0, 100))
            if not found and breaks == "raises":
                raise OSError("a bad disk")
            return found

    with ledger.serving(url):
        with pytest.raises((OSError, ParticipantUnavailableError, Exception)) as torn:
            prepare(asked(), body=Torn(ONE.body[:200]))
        assert ("a bad disk" in str(torn.value)) == (breaks == "raises")
        until(lambda: asked().prepared().branches == ())
        assert asked().show(ID).state is ParticipantState.UNKNOWN
        assert prepare(asked()) is Vote.COMMIT
