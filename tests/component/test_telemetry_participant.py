"""A participant's spans, without anything but the blueprint."""

import os
import subprocess
import sys

from support.branches import ONE, OTHER, Branch, orders
from support.kinds import sqlite_url, tagged_rows

from tracing_2pc.testing import read_trace_file

PROGRAM = """
import warnings
warnings.simplefilter("ignore")
from flask import Flask
from tracing_2pc.http.server import participant_blueprint
from tracing_2pc.participant import TaggedRows

app = Flask(__name__)
rows = TaggedRows("sqlite:///rows.db", "orders")
app.register_blueprint(participant_blueprint(rows, insecure=True, name="ledger"))
assert app.test_client().get("/transactions").status_code == 200
"""


def test_a_service_exports_spans_when_it_is_asked_to(tmp_path):
    """The environment variable is enough: no hook, no call of the service's own."""
    file = tmp_path / "trace.jsonl"
    env = {**os.environ, "TPC_TRACE_FILE": str(file)}
    subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, env=env, check=True)
    (span,) = read_trace_file(file)
    assert (span["name"], span["service"]) == ("GET /transactions", "ledger")


def test_a_prepare_says_what_was_voted(tmp_path, exported):
    """Commit, read_only for no rows, abort for a no."""
    world = tagged_rows(sqlite_url(tmp_path))
    nothing = Branch(orders(), 0, "0.2")
    for branch in (ONE, nothing, OTHER):  # the last one: other content, same branch
        world.prepare("orders.7.1", branch)
    found = [s.attributes for s in exported() if s.name == "POST /prepare"]
    assert [one["tpc.vote"] for one in found] == ["commit", "read_only", "abort"]
    world.resource.close()
