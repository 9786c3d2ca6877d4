"""How an operator acts from a page: shown once more, and done if it is the same."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from flask import Blueprint, redirect, render_template, request
from flask.typing import ResponseReturnValue

from tracing_2pc.console.login import current_session
from tracing_2pc.console.sessions import Notice
from tracing_2pc.console.state import ConsoleState
from tracing_2pc.core.errors import (
    ConfigurationError,
    ContractError,
    ParticipantError,
    ParticipantRefusedError,
)
from tracing_2pc.operations.acts import Act
from tracing_2pc.operations.resolve import LONGEST_REASON, check_reason
from tracing_2pc.wire.error_responses import Problem

_FORBIDDEN: Final = (ConfigurationError, ContractError, ParticipantRefusedError)


class ActingPages(Blueprint):
    """Pages that show what can be done about one thing, and do it in two steps.

    `acts` reads the thing anew, and `changed` is told that it may be another one now.
    """

    def __init__(self, name: str, state: ConsoleState, path: str) -> None:
        super().__init__(name, __name__)
        self._state = state
        self.post(f"{path}/confirm")(self.confirm)
        self.post(f"{path}/resolve")(self.resolve)

    def acts(self, **path: str) -> tuple[str, str, list[Act]]:
        """Return what the thing is called, how it is, and what can be done about it."""
        raise NotImplementedError

    def changed(self, **path: str) -> str:
        """Have it read anew; return the page that shows what came of it."""
        raise NotImplementedError

    def confirm(self, **path: str) -> ResponseReturnValue:
        """Show once more what would be done; change nothing."""
        with self._form(**path) as (subject, act):
            if act.gone:
                raise Problem(409, act.gone)
            return _page(subject, act, _reason(act))

    def resolve(self, **path: str) -> ResponseReturnValue:
        """Do what was confirmed, if it still is what was shown."""
        with self._form(**path) as (subject, act):
            reason, session, form = _reason(act), current_session(), request.form
            if not act.gone and form.get("fingerprint") != act.fingerprint:
                wrong = (
                    "What it is about, does or costs has changed since: read it again."
                )
                return _page(subject, act, reason, wrong), 409
            if not act.action.safe and form.get("number", "").strip() != act.number:
                wrong = f"Type {act.numbered}."
                return _page(subject, act, reason, wrong), 400
            try:
                done = act.run(session.who, reason)
            except _FORBIDDEN as error:
                raise Problem(409, str(error)) from None
            except ParticipantError as error:
                raise Problem(502, f"{error}; look at it again") from None
            finally:
                page = self.changed(**path)
            session.notice = Notice(f"{done.text}.", done.well)
        return redirect(page, 303)

    @contextlib.contextmanager
    def _form(self, **path: str) -> Iterator[tuple[str, Act]]:
        """Yield what a form asks for, which may wait for participants; or refuse it."""
        with self._state.resolving() as free:
            if not free:
                wait = "other forms wait for participants that do not answer"
                again = "Go back, and send it again in some seconds"
                raise Problem(503, f"nothing was done: {wait}. {again}")
            if not current_session().operator:
                raise Problem(403, "a viewer may look: log in as operator to resolve")
            subject, now, acts = self.acts(**path)
            name = request.form.get("option")
            if (act := next((a for a in acts if a.name == name), None)) is None:
                wrong = "this cannot be done now; look at it again"
                raise Problem(409, f"{subject} is {now}: {wrong}")
            yield subject, act


def _reason(act: Act) -> str:
    """Return the reason that a form has; without one it is refused, if it needs one."""
    reason = request.form.get("reason", "")
    try:
        return check_reason(reason) if act.needs_reason or reason.strip() else ""
    except ConfigurationError:
        form = f"one line of printable text, {LONGEST_REASON} characters at most"
        raise Problem(400, f"say why, in {form}: it is kept in the audit") from None


def _page(subject: str, act: Act, reason: str, wrong: str | None = None) -> str:
    page = request.path.rpartition("/")[0]
    return render_template(
        "confirm.html",
        title=act.title,
        subject=subject,
        known=act.facts,
        advice=act.action,
        number=act.number,
        numbered=act.numbered,
        hidden={"option": act.name, "fingerprint": act.fingerprint},
        to=f"{page}/resolve",
        back=page,
        reason=reason,
        wrong=wrong,
    )
