"""The participant's routes: they admit, read, ask the resource, and answer."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
from functools import partial
from typing import Any

from flask import Blueprint, Flask, Response, jsonify, request
from werkzeug.serving import is_running_from_reloader

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.ports import Step
from tracing_2pc.core.settings import check_name
from tracing_2pc.core.states import RequestState
from tracing_2pc.http import forms
from tracing_2pc.http.views import (
    Views,
    gate_of,
    open_or_warn,
    refuse,
    remember_context,
)
from tracing_2pc.participant.answers import Answer
from tracing_2pc.participant.engine import ParticipantEngine
from tracing_2pc.participant.metrics import Measured
from tracing_2pc.participant.requests import RequestOrder
from tracing_2pc.participant.service import ParticipantService
from tracing_2pc.tracing.spans import set_status
from tracing_2pc.wire import contract
from tracing_2pc.wire.bridge import PARTICIPANT, STARTS, start_sending
from tracing_2pc.wire.error_responses import (
    OK,
    Problem,
)

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
        resource: the store of the data: `TaggedRows`, `Outbox`, or one of your own.
        tokens: path of the tokens file (see `auth`); by default the setting
            `tokens_file`, which `TPC_TOKENS_FILE` sets.
        insecure: answer every process of this machine, and no other, without tokens:
            for a first try. Requests from a proxy or from a page in a browser are
            refused, and so is a `Host` that is no loopback name.
        max_prepare_bytes: larger bodies of a prepare are refused before they are read.
        trust_inbound: go on with the trace that a request brings. False where strangers
            can ask: a request then begins a trace of its own, linked to theirs, and a
            branch is kept and sent on with the new one.
        name: of the blueprint and, in traces, of this participant.

    Raises:
        ConfigurationError: no tokens, or the resource's settings need a change.
    """
    try:
        routes = _Routes(
            gate_of(tokens, insecure=insecure),
            check_name(name),
            trust_inbound,
            Measured(lambda: resource.gauges()),
            resource,
            max_prepare_bytes,
            ParticipantService(resource, remember_context),
        )
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    open_or_warn(resource.open, "participant")
    return routes.blueprint()


def participant_application(
    resource: ParticipantEngine, *, tokens: str | None, name: str
) -> Flask:
    """Return an application that is one participant, and closes it at its end.

    Arguments and errors are those of `participant_blueprint`.
    """
    app = Flask(__name__)
    app.register_blueprint(participant_blueprint(resource, tokens=tokens, name=name))
    app.extensions["resource"] = resource
    return app


@dataclasses.dataclass(frozen=True)
class _Routes(Views):
    resource: ParticipantEngine
    max_prepare_bytes: int
    service: ParticipantService

    def blueprint(self) -> Blueprint:
        made = self.made()
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
        # Not at import: a worker's threads must be its own. Servers of ours, and
        # `app.run`, start it before the first request.
        made.before_request(self.resource.start)
        made.record(lambda state: self._join(state.app))
        return made

    def _join(self, app: Any) -> None:
        app.extensions[PARTICIPANT] = self
        if STARTS not in app.extensions:
            app.extensions[STARTS] = []
            _start_with_run(app)
        # In this order, as within a request: the exporters have the participant's name.
        app.extensions[STARTS] += [self.export, self.resource.start]

    def prepare(self) -> Response:
        with self.serving("prepare", "prepare") as (caller, step):
            read = forms.read_prepare(request, self.max_prepare_bytes)
            about = forms.read_journal(request), forms.read_name_rows(request)
            answer = self.service.prepare(caller, step, *read, self.carrier(), *about)
            return _answer(step, read[0], answer)

    def commit(self) -> Response:
        with self.serving("commit", "commit") as (caller, step):
            order = forms.read_commit(request)
            answer = self.service.commit(caller, step, order)
            return _answer(step, order.transaction, answer)

    def abort(self) -> Response:
        with self.serving("abort", "abort branch by digest") as (caller, step):
            order = forms.read_abort(request)
            answer = self.service.abort(caller, step, order)
            return _answer(step, order.transaction, answer)

    def resolve(self) -> Response:
        with self.serving("resolve", "resolve") as (caller, step):
            order, outcome = forms.read_resolve(request)
            answer = self.service.resolve(caller, step, order, outcome)
            return _answer(step, order.transaction, answer)

    def list_open(self) -> Response:
        with self.serving("list", "list") as (caller, _):
            query, longest = forms.read_query(request), contract.MAX_ANSWER_BYTES // 2
            fields, last = self.service.list_open(caller, query, longest)
            return jsonify(**fields, next=forms.write_cursor(last))

    def show(self, transaction_id: str) -> Response:
        with self.serving("show", "show") as (caller, step):
            transaction, participant = forms.read_show(request, transaction_id)
            about = transaction, participant, forms.read_journal(request)
            answer = self.service.show(caller, step, *about)
            return _answer(step, transaction, answer)

    def quarantined(self) -> Response:
        with self.serving("quarantined", "quarantined") as (caller, _):
            query = forms.read_request_query(request)
            longest = contract.MAX_ANSWER_BYTES // 2
            fields, last = self.service.quarantined(caller, query, longest)
            return jsonify(**fields, next=forms.write_request_cursor(last))

    def order(self) -> Response:
        action = str(request.url_rule).rpartition("/")[2]  # again or drop
        with self.serving(action, action) as (caller, step):
            order = forms.read_request_order(request, asks_why=action == "drop")
            state = self.service.order(caller, step, action, order)
            return _state_of(step, order, state)

    def whoami(self) -> Response:
        return jsonify(self.service.whoami(self.admit("whoami")))

    def check_form(self) -> None:
        forms.check_version(request)

    def ready(self) -> Response:
        trouble = self.resource.ready()
        return jsonify(status="ready", **({"trouble": trouble} if trouble else {}))


def _start_with_run(app: Any) -> None:
    """Let `app.run` start the background work; other servers start it themselves."""
    run = app.run

    @functools.wraps(run)
    def start_and_run(*place: Any, **options: Any) -> None:
        # A reloader runs it twice: the first process serves nothing.
        reloads = options.get("use_reloader", options.get("debug", app.debug))
        if not reloads or is_running_from_reloader():
            start_sending(app)
        run(*place, **options)

    app.run = start_and_run


def _answer(step: Step, transaction: TransactionId, answer: Answer) -> Response:
    step.set("tpc.state", str(answer.state))
    fields = {"transaction_id": str(transaction), "state": str(answer.state)}
    fields |= answer.fields
    if answer.refusal is None:
        set_status(step, OK, error=False)
        return jsonify(fields)
    problem = Problem.of(answer.refusal, answer.detail, **fields)
    set_status(step, problem.status, error=problem.status >= 500)
    return refuse(problem)


def _state_of(step: Step, order: RequestOrder, state: RequestState) -> Response:
    set_status(step, OK, error=False)
    transaction = str(order.key.transaction)
    return jsonify(transaction_id=transaction, key=str(order.key), state=str(state))
