"""The participant's routes: they admit, read, ask the resource, and answer."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import sqlalchemy as sa
from flask import Blueprint, Response, g, jsonify, request
from opentelemetry import context as contexts
from werkzeug.exceptions import HTTPException

from tracing_2pc.core.access import Caller, Gate, LoopbackGate, TokenGate
from tracing_2pc.core.errors import ConfigurationError, RefusalError
from tracing_2pc.core.model import Carrier, TransactionId
from tracing_2pc.core.ports import Step
from tracing_2pc.core.settings import Settings, check_name
from tracing_2pc.core.states import ASK_AGAIN, RequestState
from tracing_2pc.http import contract, forms
from tracing_2pc.http.auth import admit
from tracing_2pc.http.error_responses import (
    OK,
    PROBLEM,
    Problem,
    problem_of,
    refusal_of,
    result_of,
)
from tracing_2pc.http.time_limits import TimedInput
from tracing_2pc.participant.answers import Answer
from tracing_2pc.participant.body import CHUNK
from tracing_2pc.participant.engine import ParticipantEngine
from tracing_2pc.participant.metrics import Measured, record_request
from tracing_2pc.participant.requests import RequestOrder
from tracing_2pc.participant.service import ParticipantService
from tracing_2pc.store.engines.database import describe_error
from tracing_2pc.tracing import instruments
from tracing_2pc.tracing.propagation import extract, storable_context
from tracing_2pc.tracing.sdk import lifecycle, prometheus
from tracing_2pc.tracing.spans import server_span, set_status

_UNREAD: Final = 1 << 16
"""Bytes that are read and dropped for a caller who was not admitted."""

_LINGER: Final = 64 << 20
"""Bytes of a body that was too large, read after the answer and dropped."""

_LOST: Final = (RefusalError, HTTPException, OSError)
"""What reading a body raises when its client has hung up, or is late."""

logger = logging.getLogger(__name__)


def participant_blueprint(
    resource: ParticipantEngine,
    *,
    tokens: str | os.PathLike[str] | None = None,
    insecure: bool = False,
    max_prepare_bytes: int = 1 << 30,
    trust_inbound: bool = True,
    name: str = "participant",
) -> Blueprint:
    """Return the routes that make a Flask application a participant.

    The resource's tables are made now if its database answers, else at the first
    request. No connection and no thread is left for a fork to share.

    Args:
        resource: what holds the data: `TaggedRows`, `Outbox`, or one of your own.
        tokens: path of the tokens file (see `auth`); by default the setting
            `tokens_file`, which `TPC_TOKENS_FILE` sets.
        insecure: answer every process of this machine, and no other, without tokens:
            for a first try. What a proxy has passed on is refused.
        max_prepare_bytes: larger bodies of a prepare are refused before they are read.
        trust_inbound: go on with the trace that a request brings. False where
            strangers can ask: a request then begins a trace of its own, linked to
            theirs, and that is the one that a branch is kept and sent on with.
        name: of the blueprint and, in traces, of this participant.

    Raises:
        ConfigurationError: no tokens, or the resource's settings need a change.
    """
    try:
        routes = _Routes(
            resource,
            _gate(tokens, insecure=insecure),
            max_prepare_bytes,
            check_name(name),
            trust_inbound,
            Measured(lambda: resource.gauges()),
            ParticipantService(resource, _remember_context),
        )
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    try:
        resource.open()
    except sa.exc.OperationalError as error:
        why = describe_error(error)
        logger.warning("the participant's database does not answer yet: %s", why)
    return routes.blueprint()


def _gate(tokens: str | os.PathLike[str] | None, *, insecure: bool) -> Gate:
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


@dataclasses.dataclass(frozen=True)
class _Routes:
    resource: ParticipantEngine
    gate: Gate
    max_prepare_bytes: int
    name: str
    trust_inbound: bool
    measured: Measured
    service: ParticipantService

    def blueprint(self) -> Blueprint:
        made = Blueprint(self.name, __name__)
        get = partial(made.get, provide_automatic_options=False)
        post = partial(made.post, provide_automatic_options=False)
        post("/prepare")(self.prepare)
        post("/commit")(self.commit)
        post("/abort")(self.abort)
        post("/resolve")(self.resolve)
        get("/transactions")(self.list_open)
        get("/transactions/<transaction_id>")(self.show)
        get("/outbox")(self.quarantined)
        post("/outbox/again", endpoint="again")(self.order)
        post("/outbox/drop", endpoint="drop")(self.order)
        get("/whoami")(self.whoami)
        get("/health/live")(self.live)
        get("/health/ready")(self.ready)
        get("/metrics")(self.metrics)
        made.register_error_handler(Exception, _refuse)
        # Here and not at import: a worker's threads must be its own.
        made.before_request(self._start)
        made.before_request(self.resource.start)
        made.after_request(self._record)
        made.after_request(_drain)
        return made

    def prepare(self) -> Response:
        with self._serving("prepare", "prepare") as (caller, step):
            read = forms.read_prepare(request, self.max_prepare_bytes)
            answer = self.service.prepare(caller, step, *read, self._carrier())
            return _answer(step, read[0], answer)

    def commit(self) -> Response:
        with self._serving("commit", "commit") as (caller, step):
            order = forms.read_commit(request)
            answer = self.service.commit(caller, step, order)
            return _answer(step, order.transaction, answer)

    def abort(self) -> Response:
        with self._serving("abort", "abort branch by digest") as (caller, step):
            order = forms.read_abort(request)
            answer = self.service.abort(caller, step, order)
            return _answer(step, order.transaction, answer)

    def resolve(self) -> Response:
        with self._serving("resolve", "resolve") as (caller, step):
            order, outcome = forms.read_resolve(request)
            answer = self.service.resolve(caller, step, order, outcome)
            return _answer(step, order.transaction, answer)

    def list_open(self) -> Response:
        with self._serving("list", "list") as (caller, _):
            query, longest = forms.read_query(request), contract.MAX_ANSWER_BYTES // 2
            fields, last = self.service.list_open(caller, query, longest)
            return jsonify(**fields, next=forms.write_cursor(last))

    def show(self, transaction_id: str) -> Response:
        with self._serving("show", "show") as (caller, step):
            transaction, participant = forms.read_show(request, transaction_id)
            answer = self.service.show(caller, step, transaction, participant)
            return _answer(step, transaction, answer)

    def quarantined(self) -> Response:
        with self._serving("quarantined", "quarantined") as (caller, _):
            query = forms.read_request_query(request)
            longest = contract.MAX_ANSWER_BYTES // 2
            fields, last = self.service.quarantined(caller, query, longest)
            return jsonify(**fields, next=forms.write_request_cursor(last))

    def order(self) -> Response:
        action = str(request.url_rule).rpartition("/")[2]  # again or drop
        with self._serving(action, action) as (caller, step):
            order = forms.read_request_order(request, asks_why=action == "drop")
            state = self.service.order(caller, step, action, order)
            return _state_of(step, order, state)

    def whoami(self) -> Response:
        return jsonify(self.service.whoami(self._admit("whoami")))

    def live(self) -> Response:
        return jsonify(status="live")

    def ready(self) -> Response:
        trouble = self.resource.ready()
        return jsonify(status="ready", **({"trouble": trouble} if trouble else {}))

    def metrics(self) -> Response:
        self._admit("metrics")
        text = self.measured.exposition()
        return Response(text, content_type=prometheus.CONTENT_TYPE)

    def _start(self) -> None:
        g.tpc_body = TimedInput(request.environ)
        request.environ["wsgi.input"] = g.tpc_body
        lifecycle.start(self.name)
        instruments.start(self.name, scraped=True)
        g.tpc_since = time.monotonic()

    def _record(self, response: Response) -> Response:
        """Measure what an admitted caller asked for; others move no numbers."""
        if g.get("tpc_admitted"):
            phase = str(request.url_rule).rpartition("/")[2]
            seconds = time.monotonic() - g.tpc_since
            result = result_of(response.status_code)
            record_request(phase, self.name, result, seconds, g.tpc_inside)
        return response

    @contextlib.contextmanager
    def _serving(self, asked: str, action: str) -> Iterator[tuple[Caller, Step]]:
        """Open the span of a request, and admit its caller."""
        g.tpc_sent = headers = Carrier(request.headers)
        name = f"{request.method} {request.url_rule}"
        about = {
            "tpc.request": asked,
            "tpc.participant": self.name,
            "http.request.method": request.method,
            "http.route": str(request.url_rule),
            "url.path": request.path,
            "url.scheme": request.scheme,
        }
        with server_span(name, headers, about, trusted=self.trust_inbound) as step:
            try:
                yield self._admit(action), step
                return
            except Exception as error:  # noqa: BLE001 - a refusal is no error of ours
                problem, kind = problem_of(error), type(error)
                set_status(step, problem.status, error=problem.status >= 500)
                if problem.status >= 500 and not issubclass(kind, RefusalError):
                    step.set("error.type", kind.__name__)
        raise problem

    def _carrier(self) -> Carrier:
        """Return the caller's trace context at rest, or ours: it sent none, or lies."""
        if self.trust_inbound:
            sent = storable_context(extract(g.tpc_sent))
            if "traceparent" in sent:
                return sent
        return storable_context()

    def _admit(self, action: str) -> Caller:
        caller = admit(self.gate, action, request.headers.items(), request.remote_addr)
        g.tpc_admitted = True
        _remember_context()
        forms.check_version(request)
        return caller


def _remember_context() -> None:
    """Keep the context of the request's span for `_refuse`, which comes after it."""
    g.tpc_inside = contexts.get_current()


def _refuse(error: Exception) -> Response:
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


def _answer(step: Step, transaction: TransactionId, answer: Answer) -> Response:
    step.set("tpc.state", str(answer.state))
    fields = {"transaction_id": str(transaction), "state": str(answer.state)}
    fields |= answer.fields
    if answer.refusal is None:
        set_status(step, OK, error=False)
        return jsonify(fields)
    problem = Problem.of(answer.refusal, answer.detail, **fields)
    set_status(step, problem.status, error=problem.status >= 500)
    return _refuse(problem)


def _state_of(step: Step, order: RequestOrder, state: RequestState) -> Response:
    set_status(step, OK, error=False)
    transaction = str(order.key.transaction)
    return jsonify(transaction_id=transaction, key=str(order.key), state=str(state))


def _drain(response: Response) -> Response:
    """Read what is left of a body, so that the client gets to reading the answer.

    A connection that is closed over unread bytes is reset, and the answer with it. A
    body that is too large is read after the answer, for clients that send first.
    """
    body: TimedInput = g.tpc_body
    if response.status_code == 413:
        response.call_on_close(lambda: _drop(body, _LINGER))
    elif g.get("tpc_admitted"):
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
