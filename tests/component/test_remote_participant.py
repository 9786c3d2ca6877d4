"""A participant is opened by its URL, and its transport by the URL's scheme."""

from __future__ import annotations

import ast
import importlib.metadata
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import tracing_2pc
from tracing_2pc.core import remote_participant
from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.remote_participant import (
    RemoteParticipant,
    open_participant,
    register_transport,
)
from tracing_2pc.core.settings import check_url

PACKAGE = Path(tracing_2pc.__file__).parent

SIZES = {
    ("activemq/intake.py", 500),
    ("cli/terminal.py", 400),
    ("cli/trace.py", 500),
    ("core/access.py", 512),
    ("grpc/server.py", 512),
    ("inbox/event.py", 400),
    ("inspection/listing.py", 500),
    ("inspection/trace_sources.py", 404),
    ("kafka/schemas.py", 500),
    *(("kafka/schemas.py", of_registry) for of_registry in (404, 409, 422)),
    *(("sinks/object_store.py", of_s3) for of_s3 in (409, 412)),
    ("operations/init.py", 0o644),
    ("participant/journal/journal.py", 500),
    ("protocol/decisions.py", 500),
    ("sinks/base.py", 500),
    ("sinks/rejecting.py", 400),  # years
    ("spark/query_errors.py", 500),
    ("store/log/reader.py", 500),
    ("tracing/ring.py", 0o640),
    ("tracing/ring.py", 0o700),
    ("tracing/sdk/environment.py", 512),
    ("tracing/sdk/exporting.py", 512),
    ("tracing/sdk/exporting.py", 0o644),
    ("tracing/w3c.py", 512),
}
"""Numbers that are lengths and times, and only look like a status; and what another
API than ours answers: a schema registry, a back end of traces."""


def test_what_is_built_in():
    """A sink, an operator and recovery get the same client, which pickles."""
    for url in (
        *("http://127.0.0.1:9", "https://there:8443/base"),
        *("grpc://127.0.0.1:9", "grpcs://there:50051"),
    ):
        assert check_url(url) == url
        opened = open_participant("ledger", url, "env:TPC_TOKEN", 2.0)
        assert isinstance(opened, RemoteParticipant)
        assert (opened.name, opened.url) == ("ledger", url)
        assert pickle.loads(pickle.dumps(opened)) == opened


def test_a_scheme_without_a_transport_is_one_clear_line():
    """It names the participant, the scheme, and what to do."""
    with pytest.raises(ConfigurationError) as refused:
        open_participant("ledger", "pigeon://there:50051", None, 2.0)
    assert str(refused.value) == (
        "participant 'ledger': no transport for pigeon:// is known: use http://, "
        "https://, grpc://, grpcs://, nats://, nats+tls://, activemq://, "
        "kafka://, postgresql://, sqlite://, python:module:attribute, install "
        "a package that has pigeon among its tracing_2pc.transports, "
        "or call register_transport"
    )
    with pytest.raises(ValueError, match="no transport for pigeon:// is known"):
        check_url("pigeon://there:50051")


def test_an_installed_package_brings_its_own(monkeypatch):
    """An entry point by the scheme's name is given name, URL, token and timeout."""

    class Entry:
        def load(self) -> Any:
            return lambda *given: given

    def entry_points(*, group: str, name: str) -> list[Entry]:
        assert group == "tracing_2pc.transports"
        return [Entry()] if name == "pigeon" else []

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    monkeypatch.setattr(remote_participant.metadata, "entry_points", entry_points)
    assert check_url("pigeon://there:50051/") == "pigeon://there:50051"
    given = ("ledger", "pigeon://there:50051", None, 2.0)
    assert open_participant(*given) == given


def test_a_package_without_metadata_registers_its_own(monkeypatch):
    """One of another scheme is found; what is built in stays what it is."""
    monkeypatch.setattr(remote_participant, "_registered", {})
    register_transport("pigeon", lambda *given: given)
    assert check_url("pigeon://there:50051/") == "pigeon://there:50051"
    given = ("ledger", "pigeon://there:50051", None, 2.0)
    assert open_participant(*given) == given
    with pytest.raises(ConfigurationError, match="http:// is built in"):
        register_transport("http", lambda *given: given)


@pytest.mark.parametrize(
    ("scheme", "opened"), [("http", "HttpParticipant"), ("grpc", "GrpcParticipant")]
)
def test_a_zip_on_an_executor_needs_no_package_metadata(tmp_path, scheme, opened):
    """The package alone, in a zip file, opens a participant."""
    shipped = tmp_path / "shipped.zip"
    with zipfile.ZipFile(shipped, "w") as archive:
        for module in PACKAGE.rglob("*.py"):
            archive.write(module, f"tracing_2pc/{module.relative_to(PACKAGE)}")
    program = (
        "import sys\n"
        "from importlib import metadata\n"
        f"sys.path[:] = [{str(shipped)!r}] + [p for p in sys.path if 'work' not in p or"
        " 'site-packages' in p]\n"
        "metadata.entry_points = None\n"
        "from tracing_2pc.core.remote_participant import open_participant\n"
        f"print(type(open_participant('a', '{scheme}://b:1', None, 1.0)).__name__)\n"
        "import tracing_2pc; print(tracing_2pc.__file__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    name, origin = done.stdout.split()
    assert name == opened
    assert origin.startswith(str(shipped))


_OF_HTTP = {"wire", "http", "console", "testing", "skywalking", "launch"}


def test_no_status_of_http_outside_of_its_transport():
    """The protocol, sinks, resources and the command line know refusals only.

    No number from 400 to 599, no Flask, no werkzeug, no table of statuses: outside of
    `wire/`, where all transports have them, `http/` and `console/`, the doubles of
    `testing/`, SkyWalking's own protocol, and `launch/`, which asks a registry and an
    API server.
    """
    strange = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        if name.split("/")[0] in _OF_HTTP:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        strange += [
            f"{name}:{node.lineno}" for node in ast.walk(tree) if _is_http(node, name)
        ]
    assert strange == []


def _is_http(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Constant):
        value = node.value
        is_status = type(value) is int and 400 <= value <= 599
        return is_status and (name, value) not in SIZES
    modules = []
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        modules = [node.module or ""]
    return any(m.split(".")[0] in {"flask", "werkzeug", "http"} for m in modules)


KIT = ("pyarrow", "pandas", "pyspark", "tracing_2pc.participant")
SERVERS = ("flask", "werkzeug", "gunicorn")


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("tracing_2pc.console.server", KIT),
        ("tracing_2pc.operations.watch", (*KIT, *SERVERS)),
        ("tracing_2pc.http.metrics_server", (*KIT, *SERVERS)),
        ("tracing_2pc.http.client", (*KIT, *SERVERS)),
        ("tracing_2pc.grpc.client", (*KIT, *SERVERS, "grpc_health")),
    ],
)
def test_a_face_needs_no_more_than_its_own_packages(module, absent):
    """The console and the watcher run without pyarrow and the participant's kit."""
    program = (
        "import importlib, sys\n"
        f"sys.modules.update(dict.fromkeys({absent!r}))\n"
        f"importlib.import_module({module!r})\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
