"""A table and a search index as two participants of one job.

    python service.py PORT DATABASE INDEX

The table has the latest row of each product: `http://127.0.0.1:PORT/table`. The index
at the URL INDEX has the same as documents: `http://127.0.0.1:PORT/index`. An outbox
keeps what is committed until the index has taken it, by the bulk API with the batch's
number as external version: the index then keeps the newest, whatever comes late or
twice.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from flask import Flask

from tracing_2pc.core.model import RequestKey
from tracing_2pc.http.partner import HttpPartner
from tracing_2pc.http.server import participant_blueprint
from tracing_2pc.outbox import Outbox, PartnerRequest
from tracing_2pc.participant import TaggedRows

NDJSON = {"Content-Type": "application/x-ndjson"}
CONFLICT = "version_conflict_engine_exception"


def index_line(record: Mapping[str, Any], key: RequestKey) -> PartnerRequest:
    """Return two lines of a bulk request: what to do, and the document."""
    if not record["id"]:
        raise ValueError("a document without an id gets one that nobody knows")
    about = {"_id": record["id"], "version": key.batch, "version_type": "external"}
    lines = json.dumps({"index": about}), json.dumps(record)
    return PartnerRequest("POST", "/_bulk", "".join(f"{s}\n" for s in lines), NDJSON)


def statuses(status: int, body: bytes) -> Sequence[int] | None:
    """Return what became of each document; a version that is there already is done."""
    if status != 200:
        return None  # as 429: of all of them
    items = [item["index"] for item in json.loads(body)["items"]]
    return [200 if is_there(item) else int(item["status"]) for item in items]


def is_there(item: Mapping[str, Any]) -> bool:
    return item["status"] == 409 and item["error"]["type"] == CONFLICT


def service(database: str, index: str) -> Flask:
    app = Flask("products")
    partner = HttpPartner(
        index, request=index_line, bulk=500, statuses=statuses, timeout=2.0
    )
    # So long waits the successor of one that was killed.
    outbox = Outbox(database, partner, lease=6.0)
    for name, resource in {
        "table": TaggedRows(database, "products", key=["id"]),
        "index": outbox,
    }.items():
        routes = participant_blueprint(resource, insecure=True, name=name)
        app.register_blueprint(routes, url_prefix=f"/{name}")
    outbox.start()  # goes on with what it had when it was killed
    return app


if __name__ == "__main__":
    port, database, index = sys.argv[1:]
    service(database, index).run("127.0.0.1", int(port), threaded=True)
