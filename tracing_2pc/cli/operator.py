"""`tracing-2pc operator`."""

from __future__ import annotations

import argparse
import signal
import threading
from importlib import resources

from tracing_2pc.cli.arguments import DONE
from tracing_2pc.core.settings import Settings
from tracing_2pc.launch.operator import Operator
from tracing_2pc.launch.own_cluster import own_cluster
from tracing_2pc.operations.wiring import open_configured_log, start_telemetry


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Launch resources until stopped; or write the manifests for that."""
    if options.action == "manifests":
        text = resources.files("tracing_2pc.launch").joinpath("operator.yaml")
        written = text.read_text(encoding="utf-8")
        for word in ("namespace", "image"):
            written = written.replace(word.upper(), getattr(options, word))
        print(written, end="")
        return DONE
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    with open_configured_log(settings, may_be_down=True) as log:
        start_telemetry("tpc-operator")
        cluster = own_cluster()
        operator = Operator(cluster, options.namespace, log, settings)
        print(f"ready: looking at {options.namespace} of {cluster.url}", flush=True)
        operator.run(stopping)
    return DONE
