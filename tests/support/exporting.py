"""What a program of a test is told, so that it sends all however slow the machine is.

By itself it gives up after a second or two, in which a busy machine does little.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from support.waiting import PATIENT

TESTS: Final = Path(__file__).parents[1]
AT_LEISURE: Final = """
from support.waiting import PATIENT
from tracing_2pc.tracing.sdk import flushing
flushing.EXIT_SECONDS = PATIENT
"""
"""A piece of a program that sends at its end: it ends when all was taken."""

WARNED: Final = """
import logging
warned = []
logging.getLogger("tracing_2pc").addHandler(type("Keep", (logging.Handler,), {
    "emit": lambda self, record: warned.append(record.getMessage())
})())
"""
"""A piece of a program that keeps what we log in `warned`."""


MISSING: Final = """
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ.get("MISSING"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
"""
"""A piece of a program, after `PRELUDE`: what `MISSING` names cannot be imported."""


def to(endpoint: str, patience: float = PATIENT, **more: str) -> dict[str, str]:
    """Return the settings of an exporter that is in no hurry to give up."""
    there = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, **more}
    return {"OTEL_EXPORTER_OTLP_TIMEOUT": f"{patience}", **there}


AT_ITS_END: Final = """
import time
from support.waiting import PATIENT
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
def lasting(shutdown):
    def last(provider, *arguments, **named):
        shutdown(provider, *arguments, **named)
        time.sleep(PATIENT)
    return last
for kind in (MeterProvider, TracerProvider):
    kind.shutdown = lasting(kind.shutdown)
"""
"""A piece of a program: who waits there for the SDK, which gives up after half a
minute, waits for `PATIENT`."""


def importable(folder: Path, code: str) -> str:
    """Have Python run this first, in each process that gets it as `PYTHONPATH`."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(code)
    return os.pathsep.join([str(folder), *map(str, (TESTS, TESTS.parent))])
