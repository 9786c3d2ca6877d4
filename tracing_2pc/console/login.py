"""Log in and out, and the guard that each request passes before a page sees it."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Callable
from typing import Final, TypeVar
from urllib.parse import urlsplit

from flask import (
    Blueprint,
    current_app,
    g,
    redirect,
    render_template,
    request,
    session,
    url_for,
)
from flask.typing import ResponseReturnValue
from werkzeug.exceptions import HTTPException

from tracing_2pc.console.sessions import Session, Sessions, Throttle
from tracing_2pc.core.access import Caller, Gate, Role
from tracing_2pc.core.errors import RefusalError
from tracing_2pc.wire.auth import is_forwarded
from tracing_2pc.wire.error_responses import Problem
from tracing_2pc.wire.serving import is_loopback_name

LONGEST_NAME: Final = 80

_OPEN: Final = frozenset({"static", "live"})
_ENTRY: Final = frozenset({"login.log_in", "login.form"})
View = TypeVar("View", bound=Callable[..., ResponseReturnValue])


def page(view: View) -> View:
    """Mark a page to which a login leads, if it was asked for.

    All others lead to the first page.
    """
    view.is_page = True  # type: ignore[attr-defined]
    return view


class LoginPages(Blueprint):
    """Finds the session of each request; a form that is not ours changes nothing."""

    def __init__(self, gate: Gate) -> None:
        super().__init__("login", __name__)
        self._gate = gate
        self._sessions = Sessions()
        self._throttle = Throttle()
        self.before_app_request(self.guard)
        self.get("/login")(self.form)
        self.post("/login")(self.log_in)
        self.post("/logout")(self.log_out)

    def guard(self) -> ResponseReturnValue | None:
        """Let a request through, or send it to where one logs in.

        A POST that is not from a form of ours, or has no session, is refused.
        """
        g.login = None
        if request.endpoint in _OPEN:
            return None
        _raise_if_misnamed()
        changes = request.method not in {"GET", "HEAD"}
        if changes:
            _raise_if_foreign_form()
        g.login = self._sessions.find(session.get("login"))
        if g.login is not None or request.endpoint in _ENTRY:
            return None
        if changes:
            raise Problem(403, "your session has ended: log in, and do it again")
        to_login = url_for("login.form", next=_known(request.path))
        return _page_for_link_from_elsewhere() or redirect(to_login, 303)

    def form(self) -> ResponseReturnValue:
        """Show where one logs in."""
        return _page_for_link_from_elsewhere() or _login_page()

    def log_in(self) -> ResponseReturnValue:
        """Take a token for a session; a wrong one is refused, and slows down."""
        peer, name = _client_address(), request.form.get("name", "")
        try:
            self._throttle.raise_if_too_soon(peer)
            caller = self._admit(name.strip())
        except Problem as problem:
            if problem.status == 403:
                self._throttle.count_wrong(peer)
            return _login_page(problem.detail, name), problem.status, problem.headers
        self._throttle.reset(peer)
        self._sessions.close(session.get("login"))
        session.clear()
        session.permanent = True
        session["login"] = self._sessions.open(caller, name.strip())
        session["csrf"] = secrets.token_urlsafe(32)
        return redirect(_known(request.args.get("next", "")) or "/", 303)

    def _admit(self, name: str) -> Caller:
        if len(name) > LONGEST_NAME or not name.isprintable():
            allowed = f"up to {LONGEST_NAME} characters on one line"
            raise Problem(400, f"your name: {allowed}")
        try:
            caller = self._gate.admit(request.form.get("token", "").strip(), None)
        except RefusalError:
            raise Problem(403, "this token is not known here") from None
        if caller.role not in {Role.VIEWER, Role.OPERATOR}:
            wrong = f"this is a token for {caller.role}: log in as viewer or operator"
            raise Problem(403, wrong)
        return caller

    def log_out(self) -> ResponseReturnValue:
        """End the session here, wherever its cookie still is."""
        self._sessions.close(session.get("login"))
        session.clear()
        return redirect(url_for("login.form"), 303)


def current_session() -> Session:
    """Return the session of a request that the guard has let through."""
    session: Session = g.login
    return session


def _client_address() -> str:
    """Return the address from a proxy of this machine, else the peer's.

    The last address was added by the proxy; those before it by its client.
    """
    peer = request.remote_addr or ""
    last = request.headers.get("X-Forwarded-For", "").rpartition(",")[2].strip()
    try:
        near = ipaddress.ip_address(peer).is_loopback
        return str(ipaddress.ip_address(last)) if near and last else peer
    except ValueError:
        return peer


def _page_for_link_from_elsewhere() -> str | None:
    # The browser keeps the cookie to itself when another site leads here.
    if request.headers.get("Sec-Fetch-Site") not in {"cross-site", "same-site"}:
        return None
    return render_template("continue.html", to=_known(request.path) or "/")


def _login_page(wrong: str | None = None, name: str = "") -> str:
    if "csrf" not in session:
        session.permanent = True
        session["csrf"] = secrets.token_urlsafe(32)
    return render_template("login.html", wrong=wrong, name=name[:200])


def _raise_if_misnamed() -> None:
    """Refuse a name of another site that leads a browser of this machine here."""
    host, peer = request.headers.get("Host", "localhost"), request.remote_addr or ""
    near = is_loopback_name(f"[{peer}]" if ":" in peer else peer)
    if near and not is_forwarded(request.headers.keys()) and not is_loopback_name(host):
        raise Problem(
            403,
            "this console is not known by that name: open it at 127.0.0.1, or through "
            "a proxy that adds X-Forwarded-For",
        )


def _raise_if_foreign_form() -> None:
    """Refuse what no page of ours has sent, before anything is read or done."""
    if not _is_from_here():
        raise Problem(
            403,
            "this did not come from a page of this console, as far as the browser "
            "says; open it by https, or at 127.0.0.1",
        )
    given, expected = request.form.get("csrf", ""), session.get("csrf", "")
    if not expected or not hmac.compare_digest(given.encode(), expected.encode()):
        raise Problem(403, "this form is not valid any more: go back, reload, send it")


def _is_from_here() -> bool:
    """Whether a page of ours has sent the request, according to the browser.

    `Origin` is *null* from pages that give no referrer, as ours; then only a browser
    that sends `Sec-Fetch-Site` is believed, which it does over https and on loopback.
    """
    site = request.headers.get("Sec-Fetch-Site")
    origin = request.headers.get("Origin", "null")
    try:
        elsewhere = origin != "null" and urlsplit(origin).netloc != request.host
    except ValueError:  # as in http://[
        return False
    if elsewhere:
        return False
    return site == "same-origin" if site is not None else origin != "null"


def _known(path: str) -> str | None:
    """Return the path of a page of ours, where a session may begin; else None."""
    urls = current_app.url_map.bind("localhost")
    try:
        endpoint, values = urls.match(path, "GET")
    except HTTPException:
        return None
    is_page = getattr(current_app.view_functions[endpoint], "is_page", False)
    return url_for(endpoint, **values) if is_page and len(path) < 400 else None
