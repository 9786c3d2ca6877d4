"""A sink of one's own, above a partner's own interface, driven by a loop of one's own.

    python examples/partner_sink.py http://127.0.0.1:8084

The partner wants one POST with all rows of a batch, keeps them, and is told later
whether they count. Above the class stands the one line that traces it.

The loop is no coordinator: it keeps no decision, and with a second partner a crash
between two commits would leave them apart. `two_phase_commit(PartnerSink(...), ...)`
runs such a class in a Spark job, with one that does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import requests

from tracing_2pc import traced_sink

BATCHES = ([9.5, 12.0, 3.25], [4.0, -1.0, 8.0], [7.5])


@traced_sink(requests=True)
class PartnerSink:
    """Rows are kept until `pre_commit` sends them; after that the partner has them."""

    def __init__(self, url: str) -> None:
        self.url = url

    def begin(self, batch: int) -> dict[str, Any]:
        return {"id": f"orders-{batch}", "rows": []}

    def invoke(self, handle: dict[str, Any], amount: float) -> None:
        handle["rows"].append({"amount": amount})

    def pre_commit(self, handle: dict[str, Any]) -> None:
        body = {"id": handle["id"], "rows": handle["rows"]}
        self._post("prepare", json=body)
        handle["rows"].clear()

    def commit(self, handle: dict[str, Any]) -> None:
        self._post(f"commit/{handle['id']}")

    def abort(self, handle: dict[str, Any]) -> None:
        self._post(f"rollback/{handle['id']}")

    def _post(self, path: str, **body: Any) -> None:
        requests.post(f"{self.url}/{path}", timeout=60, **body).raise_for_status()


def write(sink: PartnerSink, batch: int, amounts: Iterable[float]) -> str:
    """Write one batch, all of it or nothing."""
    handle = sink.begin(batch)
    try:
        for amount in amounts:
            sink.invoke(handle, amount)
        sink.pre_commit(handle)
    except requests.HTTPError:
        sink.abort(handle)
        return "rolled back"
    sink.commit(handle)
    return "committed"


if __name__ == "__main__":
    partner = PartnerSink(sys.argv[1])
    for number, batch in enumerate(BATCHES):
        print(f"orders-{number}: {write(partner, number, batch)}")
