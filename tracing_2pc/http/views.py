"""Common parts of `server.py` and `events.py`: admission, the span, the answer."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from flask import Blueprint, Response, g, jsonify, request
from opentelemetry import context as contexts
from werkzeug.exceptions import HTTPException

from tracing_2pc.core.access import Caller, Gate, LoopbackGate, TokenGate
from tracing_2pc.core.errors import ConfigurationError, RefusalError
from tracing_2pc.core.model import Carrier
from tracing_2pc.core.ports import Step
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import ASK_AGAIN
from tracing_2pc.http.time_limits import TimedInput
from tracing_2pc.participant.body import CHUNK
from tracing_2pc.participant.metrics import Measured, record_request
from tracing_2pc.store.engines.database import describe_error
from tracing_2pc.tracing import instruments, spans
from tracing_2pc.tracing.propagation import extract, span_of, storable_context
from tracing_2pc.tracing.sdk import lifecycle, prometheus
from tracing_2pc.tracing.spans import server_span, set_status
from tracing_2pc.wire.auth import admit
from tracing_2pc.wire.bridge import PROVEN
from tracing_2pc.wire.error_responses import (
    PROBLEM,
    problem_of,
    refusal_of,
    result_of,
)

_UNREAD: Final = 1 << 16
"""Bytes that are read and dropped for a caller who was not admitted."""

_LINGER: Final = 64 << 20
"""Bytes of a body that was too large, read after the answer and dropped."""

_LOST: Final = (RefusalError, HTTPException, OSError)
"""What reading a body raises when its client has hung up, or is late."""

logger = logging.getLogger(__name__)


def gate_of(tokens: str | os.PathLike[str] | None, *, insecure: bool) -> Gate:
    """Return who is admitted; `ConfigurationError` without tokens, if not insecure."""
    if insecure and tokens is not None:
        raise ConfigurationError("give tokens or insecure=True, not both")
    if insecure:
        logger.warning("insecure participant: every process of this machine may commit")
        return LoopbackGate()
    path = tokens or Settings.load().tokens_file
    if not path:
        raise ConfigurationError(
            "a participant needs tokens: run `tracing-2pc init` to make a tokens file "
            "and name it in TPC_TOKENS_FILE; or say insecure=True to answer this "
            "machine only"
        )
    return TokenGate.read(Path(path))


def open_or_warn(make_tables: Callable[[], object], of: str) -> None:
    """Make tables now if their database answers, else at the first request."""
    try:
        make_tables()
    except sa.exc.OperationalError as error:
        cause = describe_error(error)
        logger.warning("the %s's database does not answer yet: %s", of, cause)


@dataclasses.dataclass(frozen=True)
class Views:
    """Routes of one blueprint."""

    gate: Gate  # who is admitted
    name: str  # of the blueprint and, in traces, of the service
    trust_inbound: bool  # go on with the trace that a request brings
    measured: Measured  # the gauges of what is served
    started: dict[str, object] = dataclasses.field(
        default_factory=dict, init=False, repr=False
    )

    def made(self) -> Blueprint:
        """Return a blueprint with the routes of every service, and its metrics."""
        made = Blueprint(self.name, __name__)
        get = partial(made.get, provide_automatic_options=False)
        get("/health/live")(self.live)
        get("/health/ready")(self.ready)
        get("/metrics")(self.metrics)
        made.register_error_handler(Exception, refuse)
        made.before_request(self.start)
        made.after_request(self.finish)
        return made

    def ready(self) -> Response:
        """Answer that requests can be served now, or raise."""
        raise NotImplementedError

    def live(self) -> Response:
        """Answer that this process is alive."""
        return jsonify(status="live")

    def metrics(self) -> Response:
        """Write what Prometheus reads."""
        self.admit("metrics")
        text = self.measured.exposition()
        return Response(text, content_type=prometheus.CONTENT_TYPE)

    def start(self) -> None:
        """Begin a request: its time, its body's limits, this worker's exporters."""
        here, environ = the(g), the(request).environ
        here.tpc_body = environ["wsgi.input"] = TimedInput(environ)
        self.export()
        here.tpc_since = time.monotonic()

    def export(self) -> None:
        """Start this process's exporters, under the name of its service."""
        if self.started.get("in") != _in_force():  # else nobody looks for what to start
            lifecycle.start(self.name)
            instruments.start(self.name, scraped=True)
            self.started["in"] = _in_force()

    def finish(self, response: Response) -> Response:
        """End a request, with any answer."""
        return self.record(drain(response))

    def record(self, response: Response) -> Response:
        """Measure what an admitted caller asked for; others move no numbers."""
        here = the(g)
        if here.get("tpc_admitted"):
            phase = str(the(request).url_rule).rpartition("/")[2]
            seconds = time.monotonic() - here.tpc_since
            result = result_of(response.status_code)
            record_request(phase, self.name, result, seconds, here.tpc_inside)
        return response

    @contextlib.contextmanager
    def serving(self, asked: str, action: str) -> Iterator[tuple[Caller, Step]]:
        """Open the span of a request, and admit its caller."""
        here = the(request)
        the(g).tpc_sent = headers = Carrier(here.headers)
        route = str(here.url_rule)
        name = f"{here.method} {route}"
        about = {
            "tpc.request": asked,
            "tpc.participant": self.name,
            "http.request.method": here.method,
            "http.route": route,
            "url.path": here.path,
            "url.scheme": here.scheme,
        }
        with server_span(name, headers, about, trusted=self.trust_inbound) as step:
            try:
                yield self.admit(action), step
                return
            except Exception as error:  # noqa: BLE001 - a refusal is no error of ours
                problem, kind = problem_of(error), type(error)
                set_status(step, problem.status, error=problem.status >= 500)
                if problem.status >= 500 and not issubclass(kind, RefusalError):
                    step.set("error.type", kind.__name__)
        raise problem

    def carrier(self) -> Carrier:
        """Return the caller's trace context at rest, or ours: it sent none, or lies."""
        sent = the(g).tpc_sent
        if self.trust_inbound and span_of(sent).is_valid:
            return storable_context(extract(sent))
        return storable_context()

    def admit(self, action: str) -> Caller:
        """Admit the caller of the request under way, or raise `Problem`."""
        here, asked = the(g), the(request)
        headers = here.get("tpc_sent") or asked.headers
        proven = asked.environ.get(PROVEN)
        caller = admit(self.gate, action, headers.items(), asked.remote_addr, proven)
        here.tpc_admitted = True
        remember_context()
        self.check_form()
        return caller

    def check_form(self) -> None:
        """Refuse a request that an admitted caller has not put in its form."""


def _in_force() -> tuple[object, ...]:
    return os.getpid(), spans.provider(), instruments.program()


def the(proxy: Any) -> Any:
    """Return what Flask's name for it stands for: each use of the name looks it up."""
    return proxy._get_current_object()


def remember_context() -> None:
    """Keep the context of the request's span for `refuse`, which comes after it."""
    the(g).tpc_inside = contexts.get_current()


def refuse(error: Exception) -> Response:
    """Turn an error into a problem document that gives nothing away."""
    # The request's span is over; its ids belong into the log record.
    token = contexts.attach(g.get("tpc_inside", contexts.get_current()))
    try:
        problem = problem_of(error)
    finally:
        contexts.detach(token)
    if "tpc_transaction" in g:
        problem.fields.setdefault("transaction_id", g.tpc_transaction)
    # "Not now" is 503 or 425, and no vote.
    is_no = 400 <= problem.status < 500 and refusal_of(problem.status) not in ASK_AGAIN
    if is_no and request.path.endswith("/prepare"):
        problem.fields.setdefault("vote", "abort")
    text = json.dumps(problem.document())
    return Response(text, problem.status, problem.headers, mimetype=PROBLEM)


def drain(response: Response) -> Response:
    """Read what is left of a body, so that the client gets to reading the answer.

    A connection that is closed over unread bytes is reset, and the answer with it. A
    body that is too large is read after the answer, for clients that send first.
    """
    here = the(g)
    body: TimedInput = here.tpc_body
    if response.status_code == 413:
        response.call_on_close(lambda: _drop(body, _LINGER))
    elif here.get("tpc_admitted"):
        _drop(body, body.left)
    else:
        with contextlib.suppress(*_LOST):
            body.linger(_UNREAD)
        body.hang_up()
    return response


def _drop(body: TimedInput, most: int) -> None:
    left = min(body.left, most)
    with contextlib.suppress(*_LOST):
        while left and (piece := body.read(min(left, CHUNK))):
            left -= len(piece)
    body.hang_up()
