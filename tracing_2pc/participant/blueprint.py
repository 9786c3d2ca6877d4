"""The participant's routes: they admit, read, ask the resource, and answer."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import time
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from flask import Blueprint, Response, g, jsonify, request
from werkzeug.exceptions import HTTPException

from tracing_2pc import names
from tracing_2pc.errors import ConfigurationError
from tracing_2pc.interfaces import Step
from tracing_2pc.model import Carrier, TransactionId
from tracing_2pc.participant import forms
from tracing_2pc.participant.answers import Answer, Held
from tracing_2pc.participant.auth import (
    Caller,
    Gate,
    LoopbackGate,
    TokenGate,
    forwarded,
)
from tracing_2pc.participant.body import CHUNK
from tracing_2pc.participant.measured import Measured, record_request
from tracing_2pc.participant.problems import Problem, unavailable
from tracing_2pc.participant.refusals import refuse, remember_context, votes_abort
from tracing_2pc.participant.resources.base import Page, Resource
from tracing_2pc.participant.time_limits import TimedInput
from tracing_2pc.settings import Settings, check_name
from tracing_2pc.telemetry import lifecycle, metrics, prometheus
from tracing_2pc.telemetry.propagation import at_rest, extract
from tracing_2pc.telemetry.server_spans import server_span
from tracing_2pc.transports import wire

_UNREAD: Final = 1 << 16
"""Bytes that are read and dropped for somebody who was not admitted."""

_LINGER: Final = 64 << 20
"""Bytes of a body that was too large, read after the answer and dropped."""

_LOST: Final = (Problem, HTTPException, OSError)
"""What reading a body raises when its client has hung up, or is late."""

_log: Final = logging.getLogger(__name__)


def participant_blueprint(
    resource: Resource,
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
        insecure: answer every process of this machine, and nobody else, without
            tokens: for a first try. What a proxy has passed on is refused.
        max_prepare_bytes: larger bodies of a prepare are refused before they are read.
        trust_inbound: go on with the trace that a request brings. False where
            strangers can ask: a request then begins a trace of its own, linked to
            theirs, and that is the one that a branch is kept and sent on with.
        name: of the blueprint and, in traces, of this participant.

    Raises:
        ConfigurationError: no tokens, or the resource's settings need a change.
    """
    try:
        gate = _gate(tokens, insecure=insecure)
        routes = _Routes(
            resource,
            gate,
            max_prepare_bytes,
            check_name(name),
            trust_inbound=trust_inbound,
        )
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    try:
        resource.open()
    except sa.exc.OperationalError:
        _log.warning("the participant's database does not answer yet")
    return routes.blueprint()


def _gate(tokens: str | os.PathLike[str] | None, *, insecure: bool) -> Gate:
    if insecure and tokens is not None:
        raise ConfigurationError("give tokens or insecure=True, not both")
    if insecure:
        _log.warning("insecure participant: every process of this machine may commit")
        return LoopbackGate()
    path = tokens or Settings.load().tokens_file
    if not path:
        raise ConfigurationError(
            "a participant needs tokens: run `tracing-2pc init` to make a tokens file "
            "and name it in TPC_TOKENS_FILE; or say insecure=True to answer this "
            "machine only"
        )
    return TokenGate.read(Path(path))


class _Routes:
    """One blueprint's routes."""

    def __init__(
        self,
        resource: Resource,
        gate: Gate,
        limit: int,
        name: str,
        *,
        trust_inbound: bool,
    ) -> None:
        self._resource = resource
        self._gate = gate
        self._limit = limit
        self._name = name
        self._trust = trust_inbound
        self._measured = Measured(lambda: resource.gauges())

    def blueprint(self) -> Blueprint:
        """Put the routes on record."""
        made = Blueprint(self._name, __name__)
        for method, path, view in (
            ("POST", "/prepare", self.prepare),
            ("POST", "/commit", self.commit),
            ("POST", "/abort", self.abort),
            ("POST", "/resolve", self.resolve),
            ("GET", "/transactions", self.list_open),
            ("GET", "/transactions/<transaction_id>", self.show),
            ("GET", "/whoami", self.whoami),
            ("GET", "/health/live", self.live),
            ("GET", "/health/ready", self.ready),
            ("GET", "/metrics", self.metrics),
        ):
            made.add_url_rule(
                path,
                view.__name__,
                view,
                methods=[method],
                provide_automatic_options=False,
            )
        made.register_error_handler(Exception, refuse)
        # Here and not at import: a worker's threads must be its own.
        made.before_request(self._start)
        made.before_request(self._resource.start)
        made.after_request(self._record)
        made.after_request(_drain)
        return made

    def prepare(self) -> Response:
        """Make a branch durable, and vote."""
        with self._serving(names.PREPARE) as step:
            caller = self._admit("prepare")
            read = forms.read_prepare(request, self._limit)
            transaction, participant, named, body = read
            with forms.about(transaction):
                caller.check("prepare", transaction.application)
                _about(step, transaction)
                step.set("tpc.branch", str(named.branch))
                step.set("tpc.rows", named.rows)
                step.set("tpc.bytes", body.length)
                carrier = self._carrier()
                answer = self._resource.prepare(
                    transaction, participant, named, body, carrier
                )
            if vote := _vote(answer):
                step.set("tpc.vote", vote)
            return _answer(step, transaction, answer)

    def commit(self) -> Response:
        """Commit the named branches, and seal."""
        with self._serving(names.COMMIT) as step:
            caller = self._admit("commit")
            order = forms.read_commit(request)
            self._check(caller, "commit", order.transaction, step)
            answer = self._resource.commit(
                order.transaction, order.participant, order.named, order.watermark
            )
            return _answer(step, order.transaction, answer)

    def abort(self) -> Response:
        """Abort a transaction and seal it, or abort one branch."""
        with self._serving(names.ABORT) as step:
            caller = self._admit("abort branch by digest")
            order = forms.read_abort(request)
            action = "abort" if order.branch is None else "abort branch"
            if order.digest is not None:
                action = "abort branch by digest"
            self._check(caller, action, order.transaction, step)
            answer = self._resource.abort(
                order.transaction,
                order.participant,
                order.branch,
                order.digest,
                order.watermark,
            )
            return _answer(step, order.transaction, answer)

    def resolve(self) -> Response:
        """Do what an operator decided about an orphan."""
        with self._serving(names.RESOLVE) as step:
            caller = self._admit("resolve")
            order = forms.read_resolve(request)
            self._check(caller, "resolve", order.transaction, step)
            assert order.outcome is not None  # noqa: S101 - read_resolve sets it
            answer = self._resource.resolve(
                order.transaction, order.participant, order.outcome, order.reason
            )
            if answer.status == 200:
                about = {
                    "transaction_id": str(order.transaction),
                    "outcome": str(order.outcome),
                    "reason": order.reason,
                }
                _log.warning("resolved by hand", extra=about)
            return _answer(step, order.transaction, answer)

    def list_open(self) -> Response:
        """List what is not sealed, a page at a time."""
        with self._serving(names.LIST):
            caller = self._admit("list")
            query = forms.read_query(request)
            caller.check("list", query.application)
            only = query.application or caller.application
            page = self._resource.in_doubt(
                application=only,
                state=query.state,
                after=query.after,
                limit=query.limit,
            )
            page = _bounded(page)
            items = [_item(page, branch) for branch in page.branches]
            following = forms.write_cursor(page.next)
            return jsonify(
                transactions=items, next=following, now=page.now, application=only
            )

    def show(self, transaction_id: str) -> Response:
        """Show one transaction."""
        with self._serving(names.SHOW) as step:
            caller = self._admit("show")
            transaction = forms.read_id(transaction_id)
            self._check(caller, "show", transaction, step)
            participant = forms.read_participant_if_given(request)
            answer = self._resource.show(transaction, participant)
            return _answer(step, transaction, answer)

    def whoami(self) -> Response:
        """Say which journal this is, and by which names it is called."""
        caller = self._admit("whoami")
        identity = self._resource.identity(caller.application)
        return jsonify(dataclasses.asdict(identity))

    def live(self) -> Response:
        """Say that this process answers."""
        return jsonify(status="live")

    def ready(self) -> Response:
        """Say whether the database answers."""
        try:
            self._resource.ready()
        except (sa.exc.SQLAlchemyError, ConfigurationError):
            raise unavailable("the participant's database is not ready") from None
        return jsonify(status="ready")

    def metrics(self) -> Response:
        """Return the measurements, for Prometheus."""
        self._admit("metrics")
        text = self._measured.exposition()
        return Response(text, content_type=prometheus.CONTENT_TYPE)

    def _start(self) -> None:
        g.tpc_body = TimedInput(request.environ)
        request.environ["wsgi.input"] = g.tpc_body
        lifecycle.start(self._name)
        metrics.start(self._name, scraped=True)
        g.tpc_since = time.monotonic()

    def _record(self, response: Response) -> Response:
        """Measure what an admitted caller asked for; others move no numbers."""
        if g.get("tpc_admitted"):
            phase = str(request.url_rule).rpartition("/")[2]
            seconds = time.monotonic() - g.tpc_since
            record_request(phase, self._name, response.status_code, seconds)
        return response

    def _serving(self, name: str) -> Any:
        about = {
            "tpc.participant": self._name,
            "http.request.method": request.method,
            "http.route": str(request.url_rule),
        }
        return server_span(name, dict(request.headers), about, trusted=self._trust)

    def _carrier(self) -> Carrier:
        """Return the caller's trace context at rest, or ours: it sent none, or lies."""
        carrier = at_rest(extract(dict(request.headers))) if self._trust else {}
        return carrier if "traceparent" in carrier else at_rest() or carrier

    def _admit(self, action: str) -> Caller:
        authorization = request.headers.get("Authorization")
        near = not forwarded(request.headers.keys())
        caller = self._gate.admit(authorization, request.remote_addr if near else None)
        caller.check(action)
        g.tpc_admitted = True
        remember_context()
        forms.check_version(request)
        return caller

    def _check(
        self, caller: Caller, action: str, transaction: TransactionId, step: Step
    ) -> None:
        with forms.about(transaction):
            caller.check(action, transaction.application)
        _about(step, transaction)


def _item(
    page: Page, branch: tuple[TransactionId, Held, Carrier]
) -> dict[str, str | int | float | Carrier]:
    transaction, held, carrier = branch
    return {
        "transaction_id": str(transaction),
        "branch": str(held.named.branch),
        "state": str(held.state),
        "age": max(0.0, page.now - held.since),
        "rows": held.named.rows,
        "carrier": carrier,
    }


def _bounded(page: Page) -> Page:
    """Cut a page that would be too long to be read, whatever its carriers hold."""
    left = wire.MAX_ANSWER_BYTES // 2
    for number, branch in enumerate(page.branches):
        left -= len(json.dumps(_item(page, branch)))
        if left < 0 and number:
            last = page.branches[number - 1][1].tag
            return Page(page.branches[:number], last, page.now)
    return page


def _about(step: Step, transaction: TransactionId) -> None:
    g.tpc_transaction = str(transaction)
    step.set("tpc.transaction.id", str(transaction))
    remember_context()
    step.set("tpc.application", transaction.application)
    step.set("tpc.batch", transaction.batch)
    step.set("tpc.attempt", transaction.attempt)


def _vote(answer: Answer) -> str | None:
    """Return what a prepare was answered; None for "not now"."""
    no = "abort" if votes_abort(answer.status) else None
    vote: str | None = answer.fields.get("vote", no)
    return vote


def _answer(step: Step, transaction: TransactionId, answer: Answer) -> Response:
    step.set("tpc.state", str(answer.state))
    step.set("http.response.status_code", answer.status)
    fields = {"transaction_id": str(transaction), "state": str(answer.state)}
    fields |= answer.fields
    if answer.status == 200:
        return jsonify(fields)
    headers = {"Retry-After": "1"} if answer.status in wire.ASK_AGAIN else None
    return refuse(Problem(answer.status, answer.detail, fields=fields, headers=headers))


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
