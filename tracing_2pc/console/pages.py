"""The pages: what is unfinished, one transaction, and the two steps to resolve it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from flask import Blueprint, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from tracing_2pc.console.login import current_session
from tracing_2pc.console.resolving import ResolveOption, carry_out, resolve_options
from tracing_2pc.console.state import ConsoleState
from tracing_2pc.console.waterfall import waterfall
from tracing_2pc.core.errors import ConfigurationError, ContractError, ParticipantError
from tracing_2pc.core.links import links_of, places_of
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.states import TransactionState
from tracing_2pc.http.error_responses import Problem
from tracing_2pc.inspection.view import TransactionView
from tracing_2pc.inspection.wording import VERDICT_TEXT
from tracing_2pc.operations.resolve import LONGEST_REASON, check_reason

LINES: Final = 50
"""Branches, receipts and events that a page shows of each kind."""


class Pages(Blueprint):
    """Show what `ConsoleState` has read, and do what an operator has confirmed."""

    def __init__(self, state: ConsoleState) -> None:
        super().__init__("pages", __name__)
        self._state = state
        self.get("/")(self.board)
        self.get("/transactions/<id_>")(self.transaction)
        self.post("/transactions/<id_>/confirm")(self.confirm)
        self.post("/transactions/<id_>/resolve")(self.resolve)

    def board(self) -> ResponseReturnValue:
        """Show what is unfinished, the last hour, and what was finished."""
        bound, sources = current_session().caller.application, self._state.sources
        hours, others = self._state.hours.get(bound)
        return render_template(
            "board.html",
            board=self._state.boards.get(bound),
            hours=hours,
            others=others,
            now=sources.clock.now(),
            alone=not sources.participants,
            places=places_of(sources.settings.links),
        )

    def transaction(self, id_: str) -> ResponseReturnValue:
        """Show all that is known of one transaction; the log alone if others wait."""
        transaction, session = _read(id_), current_session()
        with self._state.asking() as free:
            view = self._state.views.get((transaction, free))
        notice, session.notice = session.notice, None
        links = self._state.sources.settings.links
        unknown = _is_unknown(view)
        worst = () if view.finished else view.diagnoses[:1]
        page = render_template(
            "transaction.html",
            view=view,
            alone=not free,
            unknown=unknown,
            mood=_mood(view),
            verdicts=[VERDICT_TEXT[diagnosis.verdict] for diagnosis in worst],
            waterfall=waterfall(view),
            links=links_of(links, view.transaction, view.trace),
            options=list(resolve_options(view)),
            longest=LONGEST_REASON,
            notice=notice,
            most=LINES,
            now=view.at,
        )
        return page, 404 if unknown else 200

    def confirm(self, id_: str) -> ResponseReturnValue:
        """Show once more what would be done; change nothing."""
        with self._chosen(_read(id_)) as (option, view):
            return _confirmation(option, view, read_reason())

    def resolve(self, id_: str) -> ResponseReturnValue:
        """Do what was confirmed, if it still is what was shown."""
        with self._chosen(_read(id_)) as (option, view):
            reason, session, form = read_reason(), current_session(), request.form
            if form.get("fingerprint") != option.fingerprint:
                wrong = "What it does or costs has changed since: read it again."
                return _confirmation(option, view, reason, wrong), 409
            typed = form.get("batch", "").strip()
            if not option.action.safe and typed != str(view.transaction.batch):
                wrong = "Type the number of the batch: it is in the middle of the id."
                return _confirmation(option, view, reason, wrong), 400
            sources = self._state.sources
            try:
                session.notice = carry_out(option, view, sources, session.who, reason)
            except (ConfigurationError, ContractError) as error:
                raise Problem(409, str(error)) from None
            except ParticipantError as error:
                raise Problem(502, f"{error}; look at it again") from None
            finally:
                self._state.drop(view.transaction)
        return redirect(url_for("pages.transaction", id_=id_), 303)

    @contextlib.contextmanager
    def _chosen(
        self, transaction: TransactionId
    ) -> Iterator[tuple[ResolveOption, TransactionView]]:
        """Yield what a form asks for, from a view that is new."""
        with place_for_form(self._state):
            self._state.drop(transaction)
            view = self._state.views.get((transaction, True))
            key = request.form.get("option")
            option = next((o for o in resolve_options(view) if o.key == key), None)
            if option is None:
                state = f"{transaction} is {view.state or 'not on record'}"
                wrong = f"{state}: this cannot be done now; look at it again"
                raise Problem(409, wrong)
            yield option, view


def _confirmation(
    option: ResolveOption, view: TransactionView, reason: str, wrong: str | None = None
) -> str:
    return render_template(
        "confirm.html", option=option, view=view, reason=reason, wrong=wrong
    )


def _mood(view: TransactionView) -> str:
    """Return how the summary is coloured."""
    if view.state is TransactionState.CONCLUDED:
        return "warning"
    if view.state is TransactionState.QUARANTINED:
        return "critical"
    if view.diagnoses:
        return str(view.diagnoses[0].severity)
    doubt = view.unsure or view.untold or view.held_back or _is_unknown(view)
    return "warning" if doubt else "well"


def _read(id_: str) -> TransactionId:
    """Return the transaction whose id is in a path, if the token is for it."""
    try:
        transaction = TransactionId.parse(id_)
    except ValueError:
        form = "an id is <application>.<batch>.<attempt>, as in orders.7.1"
        raise Problem(404, form) from None
    session = current_session()
    if not session.may_see(transaction.application):
        raise Problem(403, f"your token is for {session.caller.application} only")
    return transaction


@contextlib.contextmanager
def place_for_form(state: ConsoleState) -> Iterator[None]:
    """Let an operator's form wait for participants, or refuse it: nothing is done."""
    with state.resolving() as free:
        if not free:
            wait = "other forms wait for participants that do not answer"
            again = "Go back, and send it again in some seconds"
            raise Problem(503, f"nothing was done: {wait}. {again}")
        if not current_session().operator:
            raise Problem(403, "a viewer may look: log in as operator to resolve")
        yield


def read_reason() -> str:
    """Return the reason that a form has; it is refused without one."""
    try:
        return check_reason(request.form.get("reason", ""))
    except ConfigurationError:
        form = f"one line of printable text, {LONGEST_REASON} characters at most"
        raise Problem(400, f"say why, in {form}: it is kept in the audit") from None


def _is_unknown(view: TransactionView) -> bool:
    """Whether neither the log nor a participant that answered knows anything of it."""
    known = any(report.branches or report.error for report in view.participants)
    return view.state is None and not view.forgotten and not known
