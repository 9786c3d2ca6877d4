"""A producer of events, as the manual wants one: it sends again until it is told."""

from __future__ import annotations

import contextlib
import http.client
import json
from typing import Any

from support.waiting import ANSWERED, until


def post_until_taken(url: str, token: str, lines: str) -> list[int]:
    """Send events, one a line, to a gateway until they are taken: their positions."""
    headers = {
        "Authorization": f"Bearer {token}",
        "Content-Type": "application/x-ndjson",
    }
    address = url.removeprefix("http://")

    def once() -> Any:
        connection = http.client.HTTPConnection(address, timeout=ANSWERED)
        with contextlib.closing(connection):
            try:
                connection.request("POST", "/events", lines.encode(), headers)
                answer = connection.getresponse()
                found = json.load(answer)
            except (OSError, http.client.HTTPException, ValueError):
                return None  # no answer, or one cut short
        assert answer.status in {202, 429, 503}, (answer.status, found)
        return found.get("events")

    return [event["position"] for event in until(once)]
