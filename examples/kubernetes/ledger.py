"""A participant that keeps orders; gunicorn runs it, as `ledger.yaml` says."""

from flask import Flask

from tracing_2pc.http.server import participant_blueprint
from tracing_2pc.participant import TaggedRows
from tracing_2pc.tracing.sdk.log_records import write_to_stderr

write_to_stderr()
app = Flask(__name__)
rows = TaggedRows("env:LEDGER_DATABASE", table="orders")
app.register_blueprint(participant_blueprint(rows, name="ledger"))
