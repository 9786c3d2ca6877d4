"""Sinks: ours over participants, and a class of one's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest
from support.branches import committing
from support.texts import texts

from tracing_2pc import ParticipantSink, traced_sink
from tracing_2pc.core.content import digest_of
from tracing_2pc.core.errors import (
    EACH_TIME,
    ConfigurationError,
    ContractError,
    ParticipantRefusedError,
    ParticipantUnavailableError,
    TwoPhaseError,
)
from tracing_2pc.core.model import (
    BranchContext,
    BranchId,
    Receipt,
    TransactionId,
)
from tracing_2pc.core.names import SINK_METHODS
from tracing_2pc.core.ports import SinkOptions, SystemClock, TwoPhaseCommitSink
from tracing_2pc.core.states import Refusal, Vote
from tracing_2pc.http.client import HttpParticipant
from tracing_2pc.sinks.base import participants_of, write_branch
from tracing_2pc.sinks.members import option
from tracing_2pc.sinks.spool import Spool
from tracing_2pc.sinks.values import check_values

TEXTS = texts("unit")

CONTEXT = BranchContext(TransactionId("orders", 0, 1), BranchId(2, 5), ("a", "b"), {})


def batches(*sizes: int) -> Iterator[pa.RecordBatch]:
    for size in sizes:
        yield pa.RecordBatch.from_pydict({"n": pa.array(range(size), pa.int64())})


@pytest.mark.parametrize("in_memory", [10, 1 << 20])
def test_a_spool_is_read_by_many_at_once(in_memory):
    """Written once; each reader has a position of its own, in memory or in a file."""
    spool = Spool(in_memory)
    for part in (b"abc", b"defgh" * 10, b"i"):
        assert spool.write(part) == len(part)
    whole = b"abc" + b"defgh" * 10 + b"i"
    first, second = spool.open(), spool.open()
    assert first.read(5) == whole[:5]
    assert second.read() == whole
    assert first.read() == whole[5:]
    assert (spool.length, spool.digest) == (len(whole), digest_of(whole))
    spool.close()


class Prepared:
    """Stands in for the wire: keeps what each participant was sent."""

    def __init__(self) -> None:
        self.sent: dict[str, list[bytes]] = {"a": [], "b": []}
        self.says: list[TwoPhaseError] = []
        self.aborted: list[str] = []

    def prepare(self, me: HttpParticipant, *args: Any, **kwargs: Any) -> Vote:
        with args[2]() as body:
            self.sent[me.name].append(body.read())
        if me.name == "b" and self.says:
            raise self.says.pop()
        return Vote.COMMIT

    def abort(
        self, me: HttpParticipant, _: object, branch: object, by: str, *, journal: None
    ) -> None:
        self.aborted.append(f"{me.name} {branch} {by}")


@pytest.fixture
def prepared(monkeypatch) -> Prepared:
    """A wire of which `b` answers what it is told to, and then commit."""
    made = Prepared()
    wire = {"prepare": made.prepare, "abort_branch": made.abort}
    for name, answer in wire.items():
        through = lambda me, *a, to=answer, **named: to(me, *a, **named)  # noqa: E731
        monkeypatch.setattr(HttpParticipant, name, through)
    return made


def sink() -> ParticipantSink:
    made = ParticipantSink({"a": "http://127.0.0.1:1", "b": "http://127.0.0.1:2/"})
    return cloudpickle.loads(cloudpickle.dumps(made))  # type: ignore[no-any-return]


def votes(receipts: Iterable[Receipt]) -> dict[str, Vote]:
    return {receipt.participant: receipt.vote for receipt in receipts}


def test_a_branch_is_encoded_once_and_sent_to_all(prepared):
    """One Arrow stream per branch, the same bytes to everybody, one digest."""
    receipts = write_branch(sink(), CONTEXT, batches(3, 0, 2))
    (body,) = prepared.sent["a"]
    assert prepared.sent["b"] == [body]
    assert {r.digest for r in receipts} == {digest_of(body)}
    assert pa.ipc.open_stream(body).read_all().to_pydict() == {"n": [0, 1, 2, 0, 1]}
    assert {(r.rows, r.branch) for r in receipts} == {(5, BranchId(2, 5))}
    assert votes(receipts) == {"a": Vote.COMMIT, "b": Vote.COMMIT}


def test_a_partition_without_rows_sends_nothing(prepared):
    """Empty, or only empty batches: read_only, and no request."""
    for empty in (batches(), batches(0, 0)):
        receipts = write_branch(sink(), CONTEXT, empty)
        assert votes(receipts) == {"a": Vote.READ_ONLY, "b": Vote.READ_ONLY}
    assert prepared.sent == {"a": [], "b": []}


def test_a_lost_answer_is_asked_for_again_with_the_same_bytes(prepared):
    """That is not a new attempt: same branch, same digest."""
    prepared.says = [ParticipantUnavailableError("lost")]
    receipts = write_branch(sink(), CONTEXT, batches(3))
    assert len(prepared.sent["a"]) == 1
    assert len(set(prepared.sent["b"])) == 1
    assert len(prepared.sent["b"]) == 2
    assert votes(receipts)["b"] is Vote.COMMIT


def test_a_prepare_that_is_waited_for_can_be_stopped(prepared, monkeypatch):
    """A program that runs its tasks itself says so in the context: the branch ends."""
    prepared.says = [ParticipantUnavailableError("lost")] * 100
    waits: list[float] = []
    monkeypatch.setattr(SystemClock, "sleep", lambda _, s: waits.append(s))
    context = dataclasses.replace(CONTEXT, stopping=lambda: len(waits) > 3)
    with pytest.raises(ParticipantUnavailableError):
        write_branch(sink(), context, batches(3))
    assert 0 < len(prepared.says) < 100
    assert prepared.aborted


def test_a_prepare_under_way_is_waited_for(prepared, monkeypatch):
    """425 says that it is being written: not a lost try, however long it takes."""
    busy = ParticipantUnavailableError("busy", refusal=Refusal.IN_PROGRESS)
    prepared.says = [busy] * 50
    monkeypatch.setattr(SystemClock, "sleep", lambda *_: None)
    assert votes(write_branch(sink(), CONTEXT, batches(1)))["b"] is Vote.COMMIT
    assert prepared.says == []


BAD = pa.array([b"a\xffb"]).view(pa.string())
NESTED = pa.StructArray.from_arrays([BAD], ["deep"])
MAPPED = pa.MapArray.from_arrays([0, 1], BAD, pa.array([1]))
ZONED = pa.timestamp("us", "GMT+2")


@pytest.mark.parametrize("column", [BAD, NESTED, MAPPED], ids=["text", "deep", "key"])
def test_text_that_is_no_utf_8_reaches_no_sink(column):
    """Spark casts any bytes to text. One line names the column and the cure."""

    def rows() -> Iterator[pa.RecordBatch]:
        names = ["fine", "name"]
        yield pa.RecordBatch.from_arrays([pa.array(["€"]), column], names)
        raise AssertionError("it is asked for no more")

    own = Own()
    context = dataclasses.replace(CONTEXT, participants=("Own",))
    says = TEXTS["no UTF-8" if column is BAD else "no UTF-8 inside"]
    says = rf"^orders\.0\.1 votes abort, {EACH_TIME}: {says}"
    with pytest.raises(ConfigurationError, match=says) as caught:
        write_branch(own, context, rows())
    assert "\n" not in str(caught.value)
    assert own.told == []


def test_instants_reach_a_sink_in_utc():
    """Spark's sessions have zones that no table of zones knows. At any depth."""
    naive = pa.timestamp("us")
    kinds = {
        "at": ZONED,
        "naive": naive,
        "list": pa.list_(ZONED),
        "deep": pa.struct([("at", ZONED), ("naive", naive)]),
        "map": pa.map_(pa.string(), pa.list_(ZONED)),
    }
    schema = pa.schema(list(kinds.items()), {"a": "b"})
    row = [{"at": 1, "naive": 2, "list": [3], "deep": {"at": 4}, "map": [("k", [5])]}]
    batch = pa.RecordBatch.from_pylist(row, schema)
    (sent,) = check_values([batch])
    (at,) = sent.to_pylist()
    assert "GMT" not in str(sent.schema)
    assert sent.schema.metadata == {b"a": b"b"}
    assert at["at"].isoformat() == "1970-01-01T00:00:00.000001+00:00"
    assert (at["naive"].tzinfo, at["deep"]["naive"]) == (None, None)
    assert [at["list"][0], at["deep"]["at"], at["map"][0][1][0]] == [
        at["at"].replace(microsecond=number) for number in (3, 4, 5)
    ]


def test_a_pre_commit_that_returns_something_else_is_named():
    """Found before the vote, and the branch is aborted."""

    class Flinkish(Own):
        def pre_commit(self, handle: Any) -> Any:
            return {"committable": 1}

    own = Flinkish()
    with pytest.raises(ContractError, match=TEXTS["what pre_commit returned"]):
        write_branch(own, CONTEXT, batches(1))
    assert own.told == [("abort", {"rows": 1})]


def test_a_task_that_fails_tells_nobody_of_what_it_never_sent(prepared):
    """The error goes on: raising is the vote."""

    def poison() -> Iterator[pa.RecordBatch]:
        yield from batches(3)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_branch(sink(), CONTEXT, poison())
    assert prepared.aborted == []


def test_a_task_that_one_refuses_aborts_its_own_branch_everywhere(prepared):
    """By the digest of what it sent, which an executor may do without a job's token."""
    prepared.says = [ParticipantRefusedError("votes abort")]
    with pytest.raises(ParticipantRefusedError):
        write_branch(sink(), CONTEXT, batches(3))
    digest = digest_of(prepared.sent["a"][0])
    assert sorted(prepared.aborted) == [f"a 2.5 {digest}", f"b 2.5 {digest}"]


def test_records_one_by_one(prepared):
    """Without Spark a sink takes records, too."""
    one = sink()
    handle = one.begin(CONTEXT)
    one.invoke(handle, {"n": 1})
    one.invoke(handle, {"n": None})
    assert [r.rows for r in one.pre_commit(handle)] == [2, 2]
    (body,) = prepared.sent["a"]
    assert pa.ipc.open_stream(body).read_all().to_pydict() == {"n": [1, None]}


@pytest.mark.parametrize(
    ("urls", "says"),
    [
        ({}, TEXTS["no participant at all"]),
        ({"a": "ftp://x"}, "http://"),
        ({"a": "http://me:secret@x"}, "password"),
        ({"not a name": "http://x"}, TEXTS["what a participant's name is"]),
        # It would seal the transaction with the first commit, and refuse the second.
        ({"a": "http://x:1", "b": "http://x:1/"}, TEXTS["two of one URL"]),
        # It would be pickled into Spark's files and pages.
        ({"a": "http://x"}, "reference"),
    ],
)
def test_a_bad_sink_is_refused_before_anything_runs(urls, says):
    """The message says what to change, and never repeats a secret."""
    token = {"token": "secret-secret"} if says == "reference" else {}
    with pytest.raises(ConfigurationError, match=says) as caught:
        ParticipantSink(urls, **token)
    assert "secret" not in str(caught.value)


class Own:
    """A sink without context, without receipt, that keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def begin(self) -> Any:
        return {"rows": 0}

    def invoke(self, handle: Any, record: Any) -> None:
        handle["rows"] += 1

    def pre_commit(self, handle: Any) -> None:
        self.told.append(("pre_commit", dict(handle)))

    def commit(self, handle: Any) -> None:
        self.told.append(("commit", handle))

    def abort(self, handle: Any) -> None:
        self.told.append(("abort", handle))


def test_a_class_of_ones_own_is_one_participant():
    """Named after its class; its handle travels in the receipt as JSON."""
    own = Own()
    context = dataclasses.replace(CONTEXT, participants=tuple(participants_of(own)))
    assert context.participants == ("Own",)
    (written,) = write_branch(own, context, batches(2, 1))
    receipt = Receipt.from_json(written.to_json())
    assert (receipt.rows, receipt.handle) == (3, {"rows": 3})
    assert (receipt.participant, receipt.vote) == ("Own", Vote.COMMIT)


def test_a_sink_without_handles_hears_of_an_abort():
    """Where `begin` returns nothing, the branch of a failed task is dropped, too."""

    class Unhandled(Own):
        def begin(self) -> Any:
            return None

    own = Unhandled()  # whose `invoke` raises: there is no handle
    with pytest.raises(TypeError):
        write_branch(own, CONTEXT, batches(1))
    assert own.told == [("abort", None)]


def test_what_is_missing_is_named():
    """A class that is no sink is refused, saying which phase it lacks."""

    class Half:
        def begin(self) -> None: ...
        def pre_commit(self, handle: Any) -> None: ...
        def abort(self, handle: Any) -> None: ...

    Heir = type("Half", (Half, SinkOptions), {})  # noqa: N806 - a class
    for half in Half(), Heir(), traced_sink(Heir)():
        with pytest.raises(ContractError, match=TEXTS["a phase is missing"]):
            participants_of(half)  # type: ignore[arg-type]


def test_what_a_sink_may_have_is_on_one_page():
    """Each method that is looked for, and each attribute; the manual names all."""
    own = {name for name in vars(SinkOptions) if not name.startswith("_")}
    phases = {name for name in vars(TwoPhaseCommitSink) if not name.startswith("_")}
    assert own | phases >= SINK_METHODS.keys()
    manual = (Path(__file__).parents[2] / "docs" / "sink.md").read_text()
    assert [name for name in sorted(own | phases) if f"`{name}" not in manual] == []
    with pytest.raises(AttributeError, match="timeout"):
        option(Own(), "timeout")


@dataclasses.dataclass(frozen=True)
class Handle:
    """A handle of plain fields."""

    name: str


class Typed(Own):
    """A sink whose handle is a dataclass."""

    handle_type = Handle

    def begin(self) -> Any:
        return Handle("x")

    def invoke(self, handle: Any, record: Any) -> None: ...

    def pre_commit(self, handle: Any) -> None: ...


def test_a_dataclass_handle_is_rebuilt_for_recovery():
    """The log holds plain fields; `handle_type` says what they were."""
    typed = Typed()
    receipt = write_branch(typed, CONTEXT, batches(1))[0]
    assert receipt.handle == {"name": "x"}
    typed_participant = participants_of(typed)["Typed"]
    record = _record((dataclasses.replace(receipt, participant="Typed"),))
    typed_participant.commit(record)
    assert typed.told == [("commit", Handle("x"))]


def test_a_handle_that_is_not_json_is_named():
    """A lock in a handle is found at pre_commit, not in a recovery."""

    class Bad(Own):
        def begin(self) -> Any:
            return {"rows": 0, "lock": object()}

        def pre_commit(self, handle: Any) -> None: ...

    with pytest.raises(ContractError, match=TEXTS["a handle is not JSON"]):
        write_branch(Bad(), CONTEXT, batches(1))


def test_a_sink_that_raises_at_commit_is_asked_again():
    """Whatever it raises means "not yet", never "no"."""

    class Shy(Own):
        def commit(self, handle: Any) -> None:
            raise ZeroDivisionError

    receipt = Receipt(BranchId(0, 1), "Shy", 1, "", Vote.COMMIT, {"rows": 1})
    with pytest.raises(ParticipantUnavailableError, match="ZeroDivisionError"):
        participants_of(Shy())["Shy"].commit(_record((receipt,)))


def test_one_call_for_the_whole_transaction():
    """`commit_transaction` and `abort_transaction` are used where they are."""

    class Whole(Own):
        def commit_transaction(self, transaction_id: str, handles: list[Any]) -> None:
            self.told.append((transaction_id, handles))

        def abort_transaction(self, transaction_id: str, keep: list[Any]) -> None:
            self.told.append((transaction_id, keep))

    whole = Whole()
    receipts = tuple(
        Receipt(BranchId(n, n), "Whole", 1, "", Vote.COMMIT, {"n": n}) for n in (1, 2)
    )
    participant = participants_of(whole)["Whole"]
    participant.commit(_record(receipts))
    participant.abort(_record(receipts))
    assert whole.told == [("orders.0.1", [{"n": 1}, {"n": 2}]), ("orders.0.1", [])]


def _record(receipts: tuple[Receipt, ...]) -> Any:
    return committing(TransactionId("orders", 0, 1), *receipts)
