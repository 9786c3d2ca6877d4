"""A driver that calls with clients of its own, run by SkyWalking's own agent.

    TPC_TOKEN=… sw-python run python -m backends.stock_driver APPLICATION URL...

asks each URL, with every client that the agent knows how to trace and that is
installed, in one span.
"""

from __future__ import annotations

import os
import sys
import urllib.request

import requests
from support.waiting import AT_LAST, PATIENT

from tracing_2pc import trace_headers
from tracing_2pc.tracing import spans
from tracing_2pc.tracing.sdk import lifecycle


def main(application: str, urls: list[str]) -> None:
    lifecycle.start(application)
    with spans.span("tpc.begin", attributes={"tpc.application": application}):
        for url in urls:
            requests.get(url, headers=headers(), timeout=AT_LAST).raise_for_status()
            asked = urllib.request.Request(url, headers=headers())
            with urllib.request.urlopen(asked, timeout=AT_LAST) as answer:
                answer.read()
    lifecycle.flush(PATIENT)


def headers() -> dict[str, str]:
    return {**trace_headers(), "Authorization": f"Bearer {os.environ['TPC_TOKEN']}"}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
