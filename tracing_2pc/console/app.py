"""The Flask application: its parts, its headers, and its error pages."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from flask import Flask, Response, g, render_template, request
from flask.sessions import SecureCookieSessionInterface
from flask.typing import ResponseReturnValue
from markupsafe import Markup, escape
from werkzeug.exceptions import HTTPException
from werkzeug.routing import PathConverter

from tracing_2pc.console.actions import ActionPages
from tracing_2pc.console.board import describe_place
from tracing_2pc.console.history import HistoryPages
from tracing_2pc.console.login import LoginPages
from tracing_2pc.console.pages import Pages
from tracing_2pc.console.refused import RefusedPages
from tracing_2pc.console.sessions import LIFE
from tracing_2pc.console.state import ConsoleSources, ConsoleState
from tracing_2pc.core.access import Gate
from tracing_2pc.core.errors import DecisionLogError
from tracing_2pc.core.links import places_of
from tracing_2pc.inspection import wording
from tracing_2pc.inspection.summary import (
    describe_abort,
    describe_no_action,
    summarize,
)
from tracing_2pc.wire.error_responses import Problem

_POLICY: Final = (
    "default-src 'none'; style-src 'self'; img-src 'self'; script-src 'self'; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Of every answer."""

LARGEST: Final = 1 << 16
"""Bytes of a form."""

_CUT: Final = 1_000

logger = logging.getLogger(__name__)


def console(sources: ConsoleSources, gate: Gate) -> Flask:
    """Return the console. It reads nothing before it is asked.

    Sessions are signed with a key that is made here: they end with the process, and
    there can be one process only. Tokens for viewers and operators may log in.
    """
    app = Flask(__name__)
    app.url_map.converters["participant"] = _Participant
    app.secret_key = secrets.token_bytes(32)
    app.session_interface = _Cookies()
    app.config.update(
        MAX_CONTENT_LENGTH=LARGEST,
        MAX_FORM_MEMORY_SIZE=LARGEST,
        MAX_FORM_PARTS=20,
        SESSION_COOKIE_NAME="tpc_console",
        SESSION_COOKIE_HTTPONLY=True,
        SESSION_COOKIE_SAMESITE="Strict",
        SESSION_REFRESH_EACH_REQUEST=False,
        PERMANENT_SESSION_LIFETIME=timedelta(seconds=LIFE),
    )
    app.jinja_options = {**app.jinja_options, "trim_blocks": True}
    app.jinja_env.filters.update({filter_.__name__: filter_ for filter_ in _FILTERS})
    finds = ("trace", "transaction")
    places = places_of(sources.settings.links)
    links = [place.name for place in places if place.finds in finds]
    known = {
        "trace_links": links,
        "participant_names": list(sources.participants),
        "environment": sources.settings.environment,
        "log_address": sources.log.address,
    }
    app.jinja_env.globals.update(known)
    text = {"Content-Type": "text/plain; charset=utf-8"}
    app.add_url_rule("/health/live", "live", lambda: ("ok\n", text))
    app.register_blueprint(LoginPages(gate))
    state = ConsoleState(sources)
    app.register_blueprint(Pages(state))
    app.register_blueprint(HistoryPages(state))
    app.register_blueprint(RefusedPages(state))
    app.register_blueprint(ActionPages(state))
    app.before_request(_check_query)
    app.register_error_handler(Exception, _refuse)
    app.after_request(_protect)
    return app


class _Cookies(SecureCookieSessionInterface):
    """The session's cookie goes back over https only, where it came so."""

    def get_cookie_secure(self, app: Flask) -> bool:
        return request.is_secure


class _Participant(PathConverter):
    """A key of `participants`: `name`, or `application/name`."""

    regex = "[^/.]+(?:/[^/.]+)?"


def _check_query() -> None:
    try:
        _ = request.args
    except UnicodeDecodeError:
        raise Problem(400, "query: expected UTF-8") from None


def _protect(response: Response) -> Response:
    response.headers.update(HEADERS)
    return response


def _refuse(error: Exception) -> ResponseReturnValue:
    """Turn an error into a page with the cure, and without internal details."""
    problem = _problem(error)
    g.setdefault("login", None)
    page = render_template("error.html", problem=problem)
    return page, problem.status, problem.headers


def _problem(error: Exception) -> Problem:
    if isinstance(error, Problem):
        return error
    if isinstance(error, HTTPException):
        return Problem(error.code or 500, error.name)
    if isinstance(error, DecisionLogError):
        logger.warning("the decision log cannot be read: %s", error)
        if error.transaction_id is not None:
            return Problem(503, str(error))
        return Problem(503, "the decision log cannot be read: see the console's log")
    logger.error("a page was not made", exc_info=error)
    return Problem(500, "the console has a fault: see its log")


def cut(text: object) -> str:
    """Bound a foreign text."""
    whole = str(text)
    return whole if len(whole) <= _CUT else whole[:_CUT] + " …"


def readable(text: str, longest: int) -> str:
    """Bound a record's text, and put � for invisible and bidirectional characters."""
    shown = text[:longest]
    kept = "".join(c if c.isprintable() or c in "\n\t" else "�" for c in shown)
    return kept if len(text) <= longest else kept + " …"


def with_code(text: object) -> Markup:
    """Bound a text, and show as code what stands between backticks in it."""
    parts = escape(cut(text)).split("`")
    if len(parts) % 2 == 0:  # one of them has no other
        parts[-2:] = [Markup("`").join(parts[-2:])]
    parts[1::2] = [Markup("<code>{}</code>").format(part) for part in parts[1::2]]
    return Markup("").join(parts)


_FILTERS: Final[tuple[Callable[..., object], ...]] = (
    cut,
    readable,
    with_code,
    describe_place,
    describe_abort,
    describe_no_action,
    summarize,
    wording.without_participant,
    wording.format_time,
    wording.format_distance,
    wording.format_duration,
    wording.format_elapsed,
    wording.format_count,
    wording.format_load,
)
