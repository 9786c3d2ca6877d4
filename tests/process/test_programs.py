"""What a whole program shows: what it imports, and does without the SDK."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest
from support.programs import ran
from support.texts import texts
from support.tracing import span_tree

from tracing_2pc.testing import read_trace_file

ROOT = Path(__file__).parents[2]
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_importing_the_package_loads_no_backend():
    """`import tracing_2pc` is cheap: no Spark, no Arrow, no database, no SDK."""
    heavy = ["pyspark", "pyarrow", "sqlalchemy", "flask", "opentelemetry.sdk", "pandas"]
    code = f"import sys, tracing_2pc; print([m for m in {heavy} if m in sys.modules])"
    assert ran([sys.executable, "-c", code]).stdout == "[]\n"


WITHOUT_SDK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter")):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Block())
import tracing_2pc
from tracing_2pc import traced_sink, trace_headers
from tracing_2pc.tracing.sdk import lifecycle
from tracing_2pc.tracing import spans
from tracing_2pc.tracing.transaction import OpenTelemetryTracing
lifecycle.start("job")
tracing = OpenTelemetryTracing()
assert tracing.reserve() == ({}, {})
with tracing.step("tpc.begin", {}) as step:
    step.set("tpc.batch", 1)
with tracing.sweep([]):
    pass
caller = {"traceparent": "%s"}
with spans.server_span("POST /prepare", caller), spans.client_span("POST"):
    assert trace_headers() == caller
assert lifecycle.flush() and lifecycle.dropped() == 0
@traced_sink
class Sink:
    def begin(self): return {}
    def invoke(self, handle, record): handle["rows"] = 1
    def pre_commit(self, handle): pass
    def commit(self, handle): pass
    def abort(self, handle): pass
sink = Sink()
handle = sink.begin()
sink.invoke(handle, 1)
sink.pre_commit(handle)
sink.commit(handle)
assert handle == {"rows": 1}
assert not any(name.startswith("opentelemetry.sdk") for name in sys.modules)
"""


@pytest.mark.parametrize("asked", [{}, {"TPC_TRACE_FILE": "/nowhere/trace"}])
def test_everything_works_without_the_sdk(asked):
    """With the API alone nothing is recorded, and a caller's context is passed on."""
    done = ran([sys.executable, "-c", WITHOUT_SDK % PARENT], env=asked)
    assert done.returncode == 0, done.stderr
    said = texts("process")["tracing did not start"].format(error="ModuleNotFoundError")
    assert (said in done.stderr) == bool(asked)


PROGRAM = """
import dataclasses, sys, cloudpickle
from tracing_2pc import traced_sink

@dataclasses.dataclass(frozen=True)
class Handle:
    path: str

@traced_sink
class Sink:
    def begin(self): return Handle("a")
    def pre_commit(self, handle): pass
    def commit(self, handle): assert handle == Handle("a")

if sys.argv[1] == "task":
    sink = Sink()
    handle = sink.begin()
    sink.pre_commit(handle)
    sys.stdout.buffer.write(cloudpickle.dumps((sink, handle)))
else:
    sink, handle = cloudpickle.load(sys.stdin.buffer)
    sink.commit(handle)
    sink.commit(handle)
"""


def test_two_processes_of_a_program_write_one_trace(tmp_path):
    """A class of the main program, and its handle, through a pipe.

    The second process has no span around it: the handle says where it belongs.
    """
    program, file = tmp_path / "program.py", tmp_path / "trace"
    program.write_text(textwrap.dedent(PROGRAM))

    def run(role: str, given: bytes = b"") -> bytes:
        return subprocess.run(
            [sys.executable, program, role],
            input=given,
            stdout=subprocess.PIPE,
            env={"TPC_TRACE_FILE": str(file)},
            check=True,
        ).stdout

    run("driver", run("task"))
    assert span_tree(read_trace_file(file)) == [
        "Sink.begin",
        "  Sink.pre_commit",
        "  Sink.commit",
        "  Sink.commit",
    ]


def test_the_wheel_has_one_package(tmp_path):
    """Nothing but `tracing_2pc` is at the top, and no file is there twice."""
    from hatchling.builders.wheel import WheelBuilder

    built = WheelBuilder(str(ROOT)).build(directory=str(tmp_path))
    with zipfile.ZipFile(*built) as wheel:
        files = wheel.infolist()
    tops = {file.filename.partition("/")[0] for file in files}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"tracing_2pc"}
    large = [(file.CRC, file.file_size) for file in files if file.file_size > 100]
    assert len(set(large)) == len(large)
    assert "tracing_2pc/_participants/demo.py" in {file.filename for file in files}


WITHOUT_SPARK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"pyspark", "pandas", "flask"}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Block())
from tracing_2pc import FileSink, write
sink, log = FileSink(f"{sys.argv[1]}/out"), f"sqlite:///{sys.argv[1]}/log.db"
for again in range(2):
    print(write(sink, [{"id": 1}], application="orders", batch=0, log=log))
"""


def test_a_script_needs_no_pyspark(tmp_path):
    """`write` imports nothing of it, nor what only comes with it."""
    said = ran([sys.executable, "-c", WITHOUT_SPARK, str(tmp_path)]).stdout
    assert said == "True\nFalse\n"
    assert [file.suffix for file in (tmp_path / "out").glob("[!._]*")] == [".parquet"]
