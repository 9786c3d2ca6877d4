"""A form for each action: filled in, shown once more, and done if it is the same.

An action's arguments, effect and cost are in its module of `operations.actions`. Here
is no line about one of them.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import urlencode

from flask import Blueprint, g, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from tracing_2pc.console.login import current_session, page
from tracing_2pc.console.sessions import Notice
from tracing_2pc.console.state import ConsoleState
from tracing_2pc.core.errors import (
    ConfigurationError,
    ContractError,
    DecisionLogError,
    ParticipantRefusedError,
    TwoPhaseError,
)
from tracing_2pc.operations.actions import ACTIONS
from tracing_2pc.operations.actions.action import (
    Action,
    Given,
    PreparedAction,
    Preview,
    Reason,
    fingerprint,
)
from tracing_2pc.operations.resolve import LONGEST_REASON, check_reason
from tracing_2pc.wire.error_responses import Problem

_ACTIONS: Final = {action.slug: action for action in ACTIONS}
_FORMS: Final = {slug: action for slug, action in _ACTIONS.items() if action.title}
_FORBIDDEN: Final = (ConfigurationError, ContractError, ParticipantRefusedError)
_SHOWN: Final = 20
"""Parts of what came of an act that a notice has; the audit and the log have all."""

logger = logging.getLogger(__name__)


def forms_at(place: str) -> list[Action]:
    """Return the actions to whose forms such a page leads."""
    return [action for action in _FORMS.values() if action.place == place]


class ActionPages(Blueprint):
    """Each action has a form, and does in two steps what was filled in."""

    def __init__(self, state: ConsoleState) -> None:
        super().__init__("actions", __name__)
        self._state = state
        self.get("/actions")(self.all)
        self.get("/actions/<slug>")(self.form)
        self.post("/actions/<slug>/confirm")(self.confirm)
        self.post("/actions/<slug>/do")(self.do)

    @page
    def all(self) -> ResponseReturnValue:
        """List what can be done that no page about a thing has."""
        return render_template("actions.html", actions=_FORMS.values())

    @page
    def form(self, slug: str) -> ResponseReturnValue:
        """Show the form, filled in from the address."""
        action, session = _action(slug, _FORMS), current_session()
        given = dict(request.args.items())
        if bound := session.caller.application:
            given["application"] = bound
        return render_template(
            "action.html",
            action=action,
            given=given,
            fields=[
                argument for argument in action.arguments if not argument.terminal_only
            ],
            may=session.caller.role is action.role,
            reason=_reason_word(action),
            longest=LONGEST_REASON,
        )

    def confirm(self, slug: str) -> ResponseReturnValue:
        """Show once more what would be done; change nothing."""
        with self._prepared(slug) as (action, act):
            preview = act.preview()
            if preview.gone:
                raise Problem(409, preview.gone)
            return self._confirmation(action, act, preview, _reason(action))

    def do(self, slug: str) -> ResponseReturnValue:
        """Do what was confirmed, if it still is what was shown."""
        with self._prepared(slug) as (action, act):
            preview, reason, form = act.preview(), _reason(action), request.form
            changed = form.get("fingerprint") != fingerprint(act, preview)
            if changed and not preview.gone:
                wrong = (
                    "What it is about, does or costs has changed since: read it again."
                )
                return self._confirmation(action, act, preview, reason, wrong), 409
            number = form.get("number", "").strip()
            if not (preview.advice.safe or number == act.number):
                wrong = f"Type {act.numbered}."
                return self._confirmation(action, act, preview, reason, wrong), 400
            who = current_session().who
            logger.info("done by hand: action=%s who=%s", action.name, who)
            try:
                done = list(act.run(who, reason))
            finally:
                self._state.drop_all()
            texts = [line for part in done for line in (part.text, *part.more)]
            shown = texts if len(texts) <= _SHOWN else ["…", *texts[-_SHOWN:]]
            notice = Notice(f"{'; '.join(shown)}.", all(part.well for part in done))
            current_session().notice = notice
        return redirect(self._list_of(act.given), 303)

    def _confirmation(
        self,
        action: Action,
        act: PreparedAction,
        preview: Preview,
        reason: str,
        wrong: str | None = None,
    ) -> str:
        given = act.given
        texts = (given.get(argument.name) for argument in action.arguments)
        form = url_for("actions.form", slug=action.slug)
        return render_template(
            "confirm.html",
            title=act.title,
            subject=next(filter(None, texts), "all applications"),
            known=preview.facts,
            advice=preview.advice,
            number=act.number,
            numbered=act.numbered,
            hidden={**given, "fingerprint": fingerprint(act, preview)},
            to=url_for("actions.do", slug=action.slug),
            back=f"{form}?{urlencode(given)}" if action.title else self._page_of(given),
            reason=None if action.reason is Reason.NOT_KEPT else reason,
            wrong=wrong,
        )

    def _list_of(self, given: Given) -> str:
        """Return the page that shows what came of an act."""
        is_request = "key" in given or {"participant", "transaction"} <= given.keys()
        return url_for("refused.requests") if is_request else self._page_of(given)

    def _page_of(self, given: Given) -> str:
        """Return the page of an act's subject."""
        if (key := given.get("key")) and (name := given.get("participant")):
            return url_for("refused.request", participant=name, key=key)
        if transaction := given.get("transaction"):
            return url_for("pages.transaction", id_=transaction)
        application = given.get("application")
        if application and application in self._state.sources.log.applications():
            return url_for("history.application", name=application)
        if name := given.get("participant"):
            return url_for("history.participant", name=name)
        return url_for("pages.board")

    @contextlib.contextmanager
    def _prepared(self, slug: str) -> Iterator[tuple[Action, PreparedAction]]:
        """Yield what a form asks for, which may wait for participants; or refuse it."""
        action, session = _action(slug), current_session()
        if session.caller.role is not action.role:
            raise Problem(403, f"a viewer may look: log in as {action.role} to do this")
        given = _given(action)
        if session.caller.application is not None:
            session.raise_if_blind_to(action.application(given) or "")
        with self._state.resolving() as free:
            if not free:
                wait = "other forms wait for participants that do not answer"
                again = "Go back, and send it again in some seconds"
                raise Problem(503, f"nothing was done: {wait}. {again}")
            try:
                action.check(given)
                g.look_again = functools.partial(self._list_of, given)
                yield action, action.prepare(self._state.sources, given)
            except ValueError as error:
                raise Problem(400, str(error)) from None
            except _FORBIDDEN as error:
                raise Problem(409, str(error)) from None
            except DecisionLogError:
                raise  # what its page shows is less than the error has
            except TwoPhaseError as error:
                raise Problem(502, f"{error}; look at it again") from None


def _action(slug: str, among: Mapping[str, Action] = _ACTIONS) -> Action:
    if (action := among.get(slug)) is None:
        raise Problem(404, "there is no such action")
    return action


def _given(action: Action) -> dict[str, str]:
    """Return what a form has of an action's arguments."""
    names = [
        argument.name for argument in action.arguments if not argument.terminal_only
    ]
    texts = {name: request.form.get(name, "").strip() for name in names}
    return {name: text for name, text in texts.items() if text}


def _reason_word(action: Action) -> str | None:
    """Return a form's words about the reason; None where none is kept."""
    if action.reason is Reason.NOT_KEPT:
        return None
    return "" if action.reason is Reason.NEEDED else ", and not needed"


def _reason(action: Action) -> str:
    """Return the reason that a form has; without one it is refused, if it needs one."""
    reason = request.form.get("reason", "")
    needed = action.reason is Reason.NEEDED
    if action.reason is Reason.NOT_KEPT or not (needed or reason.strip()):
        return ""
    try:
        return check_reason(reason)
    except ConfigurationError:
        form = f"one line of printable text, {LONGEST_REASON} characters at most"
        raise Problem(400, f"say why, in {form}: it is kept in the audit") from None
