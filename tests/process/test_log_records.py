"""Log records carry the ids of the work that they are logged in.

Each test runs a program of its own: a process has one record factory.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.kinds import sqlite_url
from support.participant import World
from support.programs import ran
from support.spark import serving
from support.telemetry import PATH
from support.texts import texts
from support.tracing import read_trace_file

from tracing_2pc.core.model import BranchId, branch_receipts
from tracing_2pc.core.ports import Opening
from tracing_2pc.core.states import Decision, Vote
from tracing_2pc.participant import TaggedRows
from tracing_2pc.store import open_log

TEXTS = texts("process")

START = """
import json, logging, sys
from tracing_2pc.tracing.sdk import lifecycle, log_records
from tracing_2pc.tracing import spans
seen = []
class Keep(logging.Handler):
    def emit(self, record):
        fields = vars(record)
        seen.append([record.getMessage(), *(fields.get(n) for n in log_records.FIELDS)])
log = logging.getLogger("user")
log.addHandler(Keep())
log.setLevel("INFO")
log.propagate = False
"""
T = "orders.7.1"
TOKEN = "a-token-for-who-only-looks"
WORK = """
with spans.span("tpc.branch", attributes={"tpc.transaction.id": "orders.7.1"}) as open_:
    here = spans.current_carrier()["traceparent"].split("-")[1:3]
"""


def run(
    program: str, folder: Path | None = None, start: str = START, **environment: str
) -> Any:
    """Run a program, and return what it printed, from JSON."""
    return json.loads(run_whole(program, folder, start, **environment).stdout)


def run_whole(
    program: str, folder: Path | None, start: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    env = {"PYTHONPATH": PATH, "PATH": os.environ["PATH"], **environment}
    command = [sys.executable, "-W", "error", "-c", start + program]
    done = ran(command, env=env, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done


def traced(folder: Path, program: str) -> list[tuple[str, str, str]]:
    """Run it with tracing on: message, transaction and span's name of each record."""
    file = folder / "trace.jsonl"
    seen = run(program, folder, TPC_TRACE_FILE=str(file))
    spans = {(s["trace_id"], s["span_id"]): s["name"] for s in read_trace_file(file)}
    return [(text, id_, spans[trace, span]) for text, id_, trace, span in seen]


PROTOCOL = """
from support.protocol import FakeClock, FakeParticipant, World
from tracing_2pc.core import names
from tracing_2pc import traced_sink
from tracing_2pc.core.errors import CommitPendingError
from tracing_2pc.core.model import BranchContext, BranchId
from tracing_2pc.protocol.recovery import Recovery
from tracing_2pc.tracing.transaction import OpenTelemetryTracing
from tracing_2pc.testing import temporary_log

lifecycle.start("job")
log.info("outside")

@traced_sink
class Sink:
    def begin(self, context): return {}
    def invoke(self, handle, record): log.info("invoke")
    def pre_commit(self, handle): log.info("pre_commit")
    def commit(self, handle): pass
    def abort(self, handle): pass

class Participant(FakeParticipant):
    def _answer(self, verb, record, work):
        log.info(verb)
        super()._answer(verb, record, work)

clock = FakeClock()
world = World(temporary_log(now=clock.now), clock, on_pending="fail")
world.a, world.b = Participant("a"), FakeParticipant("b", silent=100)

def write(record):
    about = {"tpc.transaction.id": str(record.id)}
    with spans.span(names.BRANCH, carrier=record.carrier, attributes=about):
        sink, branch = Sink(), BranchId(0, 1)
        handle = sink.begin(BranchContext(record.id, branch, ("Sink",), record.carrier))
        sink.invoke(handle, 1)
        sink.pre_commit(handle)
    return world.write(record)

try:
    world.run_batch(0, write=write)
except CommitPendingError:
    pass
world.b = Participant("b")
world.b.prepared = {"orders.0.1": {"0.10", "1.11"}}
log.info("between")
recovery = Recovery(world.log, world.delivery(), OpenTelemetryTracing())
assert [item.remark for item in recovery.sweep()] == ["committed"]
outside = [one for one in seen if one[0] in ("outside", "between")]
assert [one[1:] for one in outside] == [["", "", ""]] * 2, outside
print(json.dumps([one for one in seen if one not in outside]))
"""


def test_driver_executor_and_recovery(tmp_path):
    """In a task, in a delivery and in a sweep; empty where nothing is going on."""
    assert traced(tmp_path, PROTOCOL) == [
        ("invoke", "orders.0.1", "tpc.branch"),
        ("pre_commit", "orders.0.1", "Sink.pre_commit"),
        ("commit", "orders.0.1", "tpc.deliver"),
        ("commit", "orders.0.1", "tpc.deliver"),
    ]


PENDING = (
    PROTOCOL.partition("\nworld.b = ")[0].replace(
        'log.info("outside")',
        'ours = logging.getLogger("tracing_2pc.protocol")\nours.addHandler(Keep())',
    )
    + """
(record,) = world.log.unfinished()
root = record.carrier["traceparent"].split("-")[1:3]
said = [one for one in seen if one[0].startswith("SAID")]
print(json.dumps([said[-1][1:], [str(record.id), *root]]))
""".replace("SAID", TEXTS["not acknowledged"])
)


def test_a_line_between_two_spans_names_the_root(tmp_path):
    """What the driver says of a transaction when no span of it is open."""
    said, root = run(PENDING, tmp_path, TPC_TRACE_FILE=str(tmp_path / "trace.jsonl"))
    assert said == root


TO_STDERR = """
import json, logging, sys
from tracing_2pc.tracing.sdk import lifecycle, log_records
from tracing_2pc.tracing import spans
"""
LINE = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (WARNING|ERROR) user: "


def test_lines_on_standard_error_name_what_they_belong_to(tmp_path):
    """The time in UTC, the level, the logger, the text, and the ids, if there are."""
    program = (
        """
log_records.write_to_stderr()
log_records.write_to_stderr()
log = logging.getLogger("user")
log.info("not shown")
log.warning("outside")
lifecycle.start("job")
"""
        + WORK
        + """
    try:
        raise OSError("no room")
    except OSError:
        log.exception("inside")
print(json.dumps(here))
"""
    )
    file = str(tmp_path / "trace.jsonl")
    done = run_whole(program, tmp_path, TO_STDERR, TPC_TRACE_FILE=file)
    trace, span = json.loads(done.stdout)
    outside, inside, *traceback = done.stderr.splitlines()
    assert re.fullmatch(f"{LINE}outside", outside)
    ids = f"tpc_transaction_id={T} trace_id={trace} span_id={span}"
    assert re.fullmatch(f"{LINE}inside {ids}", inside)
    assert (traceback[0], traceback[-1]) == (
        "Traceback (most recent call last):",
        "OSError: no room",
    )


RECOVER = """
import logging
from tracing_2pc.cli import main
logging.getLogger("tracing_2pc").setLevel(logging.INFO)
main(["recover"])
"""


def test_a_command_says_which_transaction_a_line_is_about(tmp_path):
    """As the watcher and the console do, which begin in the same way."""
    tokens, file = tmp_path / "tokens", tmp_path / "trace.jsonl"
    tokens.write_text(f"viewer {TOKEN}\n")
    tokens.chmod(0o600)
    resource = TaggedRows(sqlite_url(tmp_path), "orders")
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    url = f"sqlite:///{tmp_path / 'decisions.db'}"
    with contextlib.closing(open_log(url)) as log:
        about = {"run": "r", "query": "q", "carrier": {"traceparent": traceparent}}
        id_ = log.begin(
            "orders", 0, Opening(participants=["ledger"], **about)
        ).record.id
        votes = {"ledger": Vote.READ_ONLY}
        log.decide(id_, Decision.COMMIT, branch_receipts(BranchId(0, 1), 0, "", votes))
    with serving(World(resource, lambda: 0, tokens=tokens).app) as ledger:
        told = {"PYTHONPATH": PATH, "TPC_LOG": url, "TPC_TOKEN": TOKEN}
        told |= {"TPC_PARTICIPANTS": f"ledger={ledger}", "TPC_TRACE_FILE": str(file)}
        done = ran([sys.executable, "-c", RECOVER], env=told, cwd=tmp_path)
    resource.close()
    said = TEXTS["not acknowledged"]
    (line,) = (one for one in done.stderr.splitlines() if said in one)
    (span,) = (s for s in read_trace_file(file) if s["name"] == "tpc.deliver")
    ids = f"trace_id={traceparent.split('-')[1]} span_id={span['span_id']}"
    assert line.endswith(f" tpc_transaction_id=orders.0.1 {ids}")


@pytest.mark.parametrize("has_own", [False, True], ids=["nothing", "its own"])
def test_what_is_sent_is_shown_as_before(tmp_path, *, has_own):
    """A program without handlers goes on showing warnings, as `logging` does."""
    program = """
logging.basicConfig(format="own:%(message)s") if OWN else None
lifecycle.start("job")
log = logging.getLogger("user")
log.info("less")
log.warning("said")
""".replace("OWN", str(has_own))
    told = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    told |= {"OTEL_TRACES_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "otlp"}
    told["OTEL_EXPORTER_OTLP_TIMEOUT"] = "0.1"
    done = run_whole(program, tmp_path, TO_STDERR, **told)
    assert done.stderr.splitlines()[0] == ("own:said" if has_own else "said")


PARTICIPANT = """
from support.branches import ONE
from support.kinds import sqlite_url, tagged_rows
from pathlib import Path
logging.getLogger("tracing_2pc").addHandler(Keep())
world = tagged_rows(sqlite_url(Path()))
if {instrumented}:
    lifecycle.start("ledger")
    from opentelemetry.instrumentation.flask import FlaskInstrumentor
    FlaskInstrumentor().instrument_app(world.app)
seen.clear()
real = world.resource.prepare
def prepare(*arguments, **named):
    log.info("prepare")
    return real(*arguments, **named)
world.resource.prepare = prepare
assert world.prepare("orders.7.1").status_code == 200
def broken(*arguments):
    raise OSError(28, "No space left on device")
world.resource.commit = broken
assert world.commit("orders.7.1", ONE, once=True).status_code == 503
log.info("outside")
assert seen.pop() == ["outside", "", "", ""]
print(json.dumps(seen))
"""


@pytest.mark.ci
@pytest.mark.parametrize("instrumented", [False, True], ids=["ours", "instrumented"])
def test_a_participants_request(tmp_path, *, instrumented):
    """What a resource logs, and what we say of a request that could not be answered."""
    program = PARTICIPANT.replace("{instrumented}", str(instrumented))
    said = TEXTS["a request could not be served"]
    assert traced(tmp_path, program) == [
        ("prepare", T, "POST /prepare"),
        (f"{said}: OSError: [Errno 28] No space left on device", T, "POST /commit"),
    ]


def test_nothing_is_marked_where_tracing_is_off():
    """The record factory of a program that wants no traces is left alone."""
    program = """
before = logging.getLogRecordFactory()
lifecycle.start("job")
log.info("x")
print(json.dumps([logging.getLogRecordFactory() is before, seen]))
"""
    assert run(program) == [True, [["x", None, None, None]]]


def test_a_program_can_ask_for_it():
    """Its format string holds from the first record on, traced or not, and pickled."""
    program = """
import io, pickle
from tracing_2pc.tracing.sdk.log_records import mark_log_records
mark_log_records()
mark_log_records()
out = io.StringIO()
styles = (
    ("%(tpc_transaction_id)s|%(trace_id)s|%(span_id)s|%(message)s", "%"),
    ("{tpc_transaction_id}|{trace_id}|{span_id}|{message}", "{"),
    ("${tpc_transaction_id}|${trace_id}|${span_id}|${message}", "$"),
)
for text, style in styles:
    handler = logging.StreamHandler(out)
    handler.setFormatter(logging.Formatter(text, style=style))
    log.addHandler(handler)
log.info("outside")
with spans.span("tpc.branch", attributes={"tpc.transaction.id": "orders.7.1"}):
    log.info("inside")
record = logging.makeLogRecord({"msg": "made", "trace_id": "kept"})
assert b"tracing_2pc" not in pickle.dumps(record)  # whoever reads it may not have us
back = pickle.loads(pickle.dumps(record))
assert vars(back) == dict(vars(record))
assert back.trace_id == "kept" and back.span_id == ""
print(json.dumps(out.getvalue().split()))
"""
    assert run(program) == ["|||outside"] * 3 + [f"{T}|||inside"] * 3


def test_what_the_program_sets_stays(tmp_path):
    """Its own factory comes first, and `extra` may use our names as it always could."""
    program = (
        """
theirs = logging.getLogRecordFactory()
def factory(*arguments, **named):
    record = theirs(*arguments, **named)
    record.trace_id = "factory"
    return record
class Mine(logging.LogRecord):
    span_id = "class"
lifecycle.start("job")
marking = logging.getLogRecordFactory()
results = []
for own in (factory, Mine):
    logging.setLogRecordFactory(log_records._marking(own))
"""
        + WORK.replace("\n", "\n    ")
        + """
        log.info("a")
logging.setLogRecordFactory(marking)
"""
        + WORK
        + """
    log.info("b", extra={"trace_id": "extra", "tpc_transaction_id": "own"})
    log.info("c", extra={"other": 1})
    for taken in ({"msg": 1}, {"message": 1}, {"args": 1}):
        try:
            log.info("d", extra=taken)
        except KeyError:
            pass
        else:
            raise AssertionError(taken)
seen = [[text, id_, trace, span != "" and span] for text, id_, trace, span in seen]
print(json.dumps([seen, here]))
"""
    )
    seen, (trace, span) = run(
        program, tmp_path, TPC_TRACE_FILE=str(tmp_path / "trace.jsonl")
    )
    assert [one[:3] for one in seen[:1]] == [["a", T, "factory"]]
    assert (seen[1][0], seen[1][3]) == ("a", "class")
    assert seen[2:] == [["b", "own", "extra", span], ["c", T, trace, span]]


def test_a_broken_context_costs_the_ids_only():
    """A record is written whatever happens to its marks."""
    program = """
log_records.mark_log_records()
class Broken:
    def get_current_span(self): raise RuntimeError
log_records.trace = Broken()
log.info("x")
print(json.dumps(seen))
"""
    assert run(program) == [["x", None, None, None]]


def test_a_fork_goes_on_with_it(tmp_path):
    """A worker's records are marked as its parent's are, and once."""
    program = (
        """
import os
lifecycle.start("job")
read, write = os.pipe()
if os.fork() == 0:
    lifecycle.start("job")
"""
        + WORK.replace("\n", "\n    ")
        + """
        log.info("x")
    os.write(write, json.dumps(seen[0][:2]).encode())
    os._exit(0)
os.wait()
print(os.read(read, 1000).decode())
"""
    )
    file = tmp_path / "trace.jsonl"
    assert run(program, tmp_path, TPC_TRACE_FILE=str(file)) == ["x", T]
