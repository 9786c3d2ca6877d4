"""Spans that stay on this machine: bounded, and whole lines whatever happens."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path

import pytest
from support.exporting import WARNED
from support.telemetry import PRELUDE, run

from tracing_2pc.tracing import ring

TRACE = "0af7651916cd43dd8448eb211c80319c"


def append(folder: Path, number: int) -> None:
    ring.append(folder, json.dumps({"trace_id": TRACE, "n": number}).encode() + b"\n")


def kept(folder: Path, trace: str = TRACE) -> list[int]:
    return sorted(span["n"] for span in ring.read(folder, trace))


def test_the_newest_spans_stay(tmp_path, monkeypatch):
    """In so many files of so many bytes; the oldest file goes as a whole."""
    monkeypatch.setattr(ring, "FILE_BYTES", 1000)
    monkeypatch.setattr(ring, "FILES", 3)
    for number in range(200):
        append(tmp_path, number)
    there = kept(tmp_path)
    assert there == list(range(there[0], 200))
    assert there[0] > 0
    files = list(tmp_path.iterdir())
    assert len(files) == ring.FILES
    assert sum(file.stat().st_size for file in files) < ring.FILES * 1100
    assert kept(tmp_path, "another") == []


def test_a_line_that_was_cut_short_costs_itself(tmp_path):
    """That of a killed process or a full disk; one under way is left out."""
    append(tmp_path, 1)
    file = tmp_path / "spans.jsonl"
    with file.open("ab") as opened:
        opened.write(f'{{"trace_id": "{TRACE}", "n": 2'.encode())
    assert kept(tmp_path) == [1]
    append(tmp_path, 3)
    with file.open("ab") as opened:
        opened.write(f'\n["{TRACE}"]\n\xff"{TRACE}"\n'.encode("latin-1"))
    assert kept(tmp_path) == [1, 3]


def test_a_file_that_cannot_be_put_aside_does_not_grow(tmp_path, monkeypatch):
    """It is full at twice its size; then what comes is lost."""
    monkeypatch.setattr(ring, "FILE_BYTES", 1000)
    monkeypatch.setattr(ring, "_rotate", lambda folder: None)
    file = tmp_path / "spans.jsonl"
    file.write_bytes(b"x" * 2000)
    with pytest.raises(OSError, match="put aside"):
        append(tmp_path, 1)
    assert file.stat().st_size == 2000


def test_what_is_no_file_is_not_read(tmp_path):
    """A link or a pipe that another user has put there."""
    append(tmp_path, 1)
    os.mkfifo(tmp_path / "spans-1.jsonl")
    assert kept(tmp_path) == [1]
    (tmp_path / "spans-2.jsonl").symlink_to(tmp_path / "spans.jsonl")
    with pytest.raises(OSError, match="symbolic"):
        kept(tmp_path)


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("TPC_SPANS", "")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_folders_of_other_users_are_not_looked_into(temporary, monkeypatch):
    """They may hold anything, in any number: only our own, and root's."""
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    for user in (0, 4242, *range(4243, 4300)):
        (temporary / f"tracing-2pc-spans-{user}").mkdir(mode=0o700)
    ours = [temporary / f"tracing-2pc-spans-{user}" for user in (0, 4242)]
    assert ring.folders() == ours


@pytest.mark.parametrize("named", [False, True])
def test_a_folder_that_others_can_write_into_is_not_read(temporary, monkeypatch, named):
    """In the place of ours, or of root's: what it holds may be forged.

    Where a person names a folder, the person says whose it is.
    """
    folder = temporary / f"tracing-2pc-spans-{os.getuid()}"
    folder.mkdir()
    append(folder, 1)
    (folder / "spans.jsonl").chmod(0o644)
    assert kept(folder) == [1]
    folder.chmod(0o777)
    if named:
        monkeypatch.setattr(os, "getuid", lambda: 4242)
        assert kept(folder.rename(temporary / "named")) == [1]
        return
    with pytest.raises(PermissionError, match="others can write there"):
        kept(folder)


def test_reading_ends_in_time(tmp_path):
    """However much there is; what was read until then stands, and the rest is said."""
    for number in range(3):
        append(tmp_path, number)
    with pytest.raises(TimeoutError, match="some are left out"):
        list(ring.read(tmp_path, TRACE, until=time.monotonic()))


FULL = f"""{WARNED}
import resource
from support.waiting import PATIENT
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))
made(40)
first = [lifecycle.flush(PATIENT), lifecycle.dropped()]
made(40)
lifecycle.flush(PATIENT)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
with spans.span("tpc.transaction"):
    pass
lifecycle.flush(PATIENT)
say([first, warned])
"""


def lines(folder: Path) -> list[dict[str, object]]:
    found = []
    for line in (folder / "spans.jsonl").read_bytes().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            assert not line.endswith(b"}")
    return found


def test_a_full_disk_costs_spans_and_one_line(tmp_path):
    """Nothing is raised; when there is room, spans are kept again."""
    ((flushed, dropped), warned), _ = run(FULL, TPC_SPANS=str(tmp_path))
    assert (flushed, dropped) == (True, 0)
    assert len(warned) == 1
    assert "TPC_SPANS" in warned[0]
    assert lines(tmp_path)[-1]["name"] == "tpc.transaction"


def test_a_fork_and_a_kill_lose_nothing_that_was_flushed(tmp_path):
    """Of many processes that write to one ring."""
    code = """
from support.waiting import PATIENT
with spans.span("tpc.transaction"):
    for _ in range(4):
        if os.fork() == 0:
            made(50)
            lifecycle.flush(PATIENT)
            os.kill(os.getpid(), 9)
    for _ in range(4):
        os.wait()
say(0)
"""
    run(code, TPC_SPANS=str(tmp_path))
    found = lines(tmp_path)
    assert len({span["span_id"] for span in found}) == len(found) == 201
    (root,) = (span for span in found if span["name"] == "tpc.transaction")
    assert {s["parent_id"] for s in found} == {None, root["span_id"]}
    assert {s["trace_id"] for s in found} == {root["trace_id"]}


PROGRAM = f"""{PRELUDE}{WARNED}
lifecycle.start("job")
from support.waiting import PATIENT
from opentelemetry import trace
made()
lifecycle.flush(PATIENT)
first = [spans.is_set(), spans.is_recording(), len(warned)]
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
exporter = InMemorySpanExporter()
theirs = TracerProvider()
theirs.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(theirs)
with theirs.get_tracer("theirs").start_as_current_span("secret"):
    made()
say([first, [span.name for span in exporter.get_finished_spans()]])
"""


@pytest.mark.parametrize("how", ["by default", "of another", "off", "disabled"])
def test_it_is_on_unless_it_is_turned_off(tmp_path, how):
    """For the user alone; a program may still set up OpenTelemetry, and later."""
    folder = tmp_path / f"tracing-2pc-spans-{os.getuid()}"
    environment = {"TMPDIR": str(tmp_path)}
    if how == "of another":
        folder.mkdir()
        folder.chmod(0o777)
    elif how != "by default":
        variable = "TPC_SPANS" if how == "off" else "OTEL_SDK_DISABLED"
        environment[variable] = "off" if how == "off" else "true"
    environment = {"TPC_SPANS": "", **environment}
    (first, theirs), _ = run("", start=PROGRAM, **environment)
    assert first == [False, how == "by default", int(how == "of another")]
    assert theirs == ([] if how == "disabled" else ["tpc.decide", "secret"])
    if how != "by default":
        assert not folder.exists() or not list(folder.iterdir())
        return
    assert [span["name"] for span in lines(folder)] == ["tpc.decide"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "spans.jsonl").stat().st_mode) & 0o007 == 0


def test_of_another_library_only_what_is_about_a_transaction_stays(tmp_path):
    """Without attributes that are not ours, also where all spans are exported."""
    code = """
from support.waiting import PATIENT
from opentelemetry import trace
theirs = trace.get_tracer("theirs")
with theirs.start_as_current_span("GET /", attributes={"secret": "x"}):
    pass
about = {"secret": "x", "tpc.transaction.id": "orders.7.1"}
with theirs.start_as_current_span("POST /prepare", attributes=about):
    made()
lifecycle.flush(PATIENT)
say(0)
"""
    folder, file = tmp_path / "ring", tmp_path / "file"
    more = {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "40000"}  # of a larger queue
    run(code, TPC_SPANS=str(folder), TPC_TRACE_FILE=str(file), **more)
    assert len(file.read_text().splitlines()) == 3
    assert [(s["name"], s["attributes"]) for s in lines(folder)] == [
        ("tpc.decide", {}),
        ("POST /prepare", {"tpc.transaction.id": "orders.7.1"}),
    ]
