"""Make so many short traces, so many seconds apart; print their ids at the end.

And a point for each as it is made.
"""

from __future__ import annotations

import json
import sys
import time

from opentelemetry import trace
from support.waiting import PATIENT

from tracing_2pc.tracing import spans
from tracing_2pc.tracing.sdk import lifecycle


def main(count: int, pause: float) -> None:
    lifecycle.start("steady")
    made = []
    for _ in range(count):
        with spans.span("tpc.begin", attributes={"tpc.application": "steady"}):
            context = trace.get_current_span().get_span_context()
            made.append((trace.format_trace_id(context.trace_id), time.time()))
        sys.stdout.write(".\n")
        sys.stdout.flush()
        time.sleep(pause)
    sent = lifecycle.flush(PATIENT)
    said = {"made": made, "sent": sent, "dropped": lifecycle.dropped()}
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
