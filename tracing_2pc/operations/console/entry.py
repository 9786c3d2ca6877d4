"""Log in and out, and what every request is held against before a page sees it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Final

from flask import (
    Blueprint,
    g,
    make_response,
    redirect,
    render_template,
    request,
    session,
    url_for,
)
from flask.typing import ResponseReturnValue

from tracing_2pc.model import TransactionId
from tracing_2pc.operations.console.auth import (
    Logins,
    Throttle,
    address_of,
    admit,
    from_here,
    same,
)
from tracing_2pc.participant.auth import Gate
from tracing_2pc.participant.problems import Problem

_OPEN: Final = frozenset({"static", "live"})
_ENTRY: Final = frozenset({"entry.log_in", "entry.form"})
_FOREIGN: Final = frozenset({"cross-site", "same-site"})


class Entry:
    """Knows who a request is from; a form that is not ours changes nothing.

    Args:
        gate: knows the tokens.
        clock: seconds that only grow.
    """

    def __init__(self, gate: Gate, clock: Callable[[], float] = time.monotonic) -> None:
        self._gate = gate
        self._logins = Logins(clock)
        self._throttle = Throttle(clock)

    def blueprint(self) -> Blueprint:
        """Put the routes and the guard on record."""
        made = Blueprint("entry", __name__)
        made.before_app_request(self.guard)
        made.add_url_rule("/login", "form", self.form, methods=["GET"])
        made.add_url_rule("/login", "log_in", self.log_in, methods=["POST"])
        made.add_url_rule("/logout", "log_out", self.log_out, methods=["POST"])
        return made

    def guard(self) -> ResponseReturnValue | None:
        """Let a request through, or send it to where one logs in.

        Raises:
            Problem: 403: a POST that is not from a form of ours, or of nobody.
        """
        g.login = None
        if request.endpoint in _OPEN:
            return None
        if request.method not in {"GET", "HEAD"}:
            _check_form()
        g.login = self._logins.find(session.get("login"))
        if g.login is not None or request.endpoint in _ENTRY:
            return None
        if request.method not in {"GET", "HEAD"}:
            raise Problem(403, "your session has ended: log in, and do it again")
        # The cookie stays at home when another site leads here: one more click.
        if request.headers.get("Sec-Fetch-Site") in _FOREIGN:
            return render_template("continue.html", to=_known(request.path) or "/")
        return redirect(url_for("entry.form", next=_known(request.path)), 303)

    def form(self) -> ResponseReturnValue:
        """Show where one logs in."""
        if request.headers.get("Sec-Fetch-Site") in _FOREIGN:
            return render_template("continue.html", to=_known(request.path) or "/")
        return _login_page()

    def log_in(self) -> ResponseReturnValue:
        """Take a token for a session; a wrong one is said, and slows down."""
        forwarded_for = request.headers.get("X-Forwarded-For")
        peer = address_of(request.remote_addr or "", forwarded_for)
        name, token = request.form.get("name", ""), request.form.get("token", "")
        try:
            self._throttle.check(peer)
            caller, name = admit(self._gate, token.strip(), name)
        except Problem as problem:
            if problem.status == 403:
                self._throttle.wrong(peer)
            answer = make_response(_login_page(problem.detail, name), problem.status)
            answer.headers.extend(problem.headers)
            return answer
        self._throttle.right(peer)
        self._logins.close(session.get("login"))
        session.clear()
        session.permanent = True
        session["login"] = self._logins.open(caller, name)
        session["csrf"] = secrets.token_urlsafe(32)
        return redirect(_known(request.args.get("next", "")) or "/", 303)

    def log_out(self) -> ResponseReturnValue:
        """End the session here, wherever its cookie still is."""
        self._logins.close(session.get("login"))
        session.clear()
        return redirect(url_for("entry.form"), 303)


def _login_page(wrong: str | None = None, name: str = "") -> str:
    if "csrf" not in session:
        session.permanent = True
        session["csrf"] = secrets.token_urlsafe(32)
    return render_template("login.html", wrong=wrong, name=name[:200])


def _check_form() -> None:
    """Refuse what no page of ours has sent, before anything is read or done."""
    if not from_here(dict(request.headers), request.host):
        raise Problem(
            403,
            "this did not come from a page of this console, as far as the browser "
            "says; open it by https, or at 127.0.0.1",
        )
    if not same(request.form.get("csrf"), session.get("csrf")):
        raise Problem(403, "this form is not valid any more: go back, reload, send it")


def _known(path: str) -> str | None:
    """Return a path of ours that a session may begin at; nothing else is followed."""
    name = path.removeprefix("/transactions/")
    try:
        return f"/transactions/{TransactionId.parse(name)}" if name != path else None
    except ValueError:
        return None
