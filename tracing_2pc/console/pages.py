"""The pages: unfinished transactions, and one transaction with its actions."""

from __future__ import annotations

from typing import Final

from flask import Blueprint, render_template
from flask.typing import ResponseReturnValue

from tracing_2pc.console.actions import forms_at
from tracing_2pc.console.login import current_session, page
from tracing_2pc.console.reports import ApplicationReport
from tracing_2pc.console.state import ConsoleState
from tracing_2pc.console.waterfall import waterfall
from tracing_2pc.core.links import links_of, places_of
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.states import Decision, TransactionState
from tracing_2pc.inspection.trace import NO_PROOF
from tracing_2pc.inspection.view import TransactionView
from tracing_2pc.inspection.wording import VERDICT_TEXT
from tracing_2pc.operations.actions.resolve import offers
from tracing_2pc.operations.resolve import LONGEST_REASON
from tracing_2pc.wire.error_responses import Problem

LINES: Final = 50
"""Branches, receipts and events that a page shows of each kind."""


class Pages(Blueprint):
    """Show what `ConsoleState` has read."""

    def __init__(self, state: ConsoleState) -> None:
        super().__init__("pages", __name__)
        self._state = state
        self.get("/")(self.board)
        self.get("/transactions/<id_>")(self.transaction)

    def board(self) -> ResponseReturnValue:
        """Show unfinished transactions, the last hour, and finished ones."""
        return render_board(self._state, current_session().caller.application)

    @page
    def transaction(self, id_: str) -> ResponseReturnValue:
        """Show all that is known of one transaction; the log alone if others wait."""
        transaction = read_id(id_)
        with self._state.asking() as free:
            view = self._state.views.get((transaction, free))
        links = self._state.sources.settings.links
        unknown = _is_unknown(view)
        verdicts = [f.verdict for f in view.wrong if f.verdict is not None]
        worst = () if view.finished else verdicts[:1]
        shown = render_template(
            "transaction.html",
            view=view,
            alone=not free,
            unknown=unknown,
            colour=_colour(view),
            verdicts=[VERDICT_TEXT[verdict] for verdict in worst],
            waterfall=waterfall(view),
            trace=self._state.traces.get(transaction).latest(),
            no_proof=NO_PROOF,
            links=links_of(links, view.transaction, view.trace),
            offers=list(offers(view)),
            longest=LONGEST_REASON,
            most=LINES,
            now=view.at,
        )
        return shown, 404 if unknown else 200


def render_board(
    state: ConsoleState,
    application: str | None,
    report: ApplicationReport | None = None,
) -> str:
    """Render the first page, of one application if one is given."""
    hours, others = state.hours.get(application)
    return render_template(
        "board.html",
        application=application,
        report=report,
        board=state.boards.get(application),
        hours=hours,
        others=others,
        now=state.sources.clock.now(),
        alone=not state.sources.participants,
        places=() if report else places_of(state.sources.settings.links),
        forms=forms_at("application"),
    )


def _colour(view: TransactionView) -> str:
    """Return how the summary is coloured."""
    if view.state is TransactionState.CONCLUDED:
        return "warning"
    if view.state is TransactionState.QUARANTINED:
        return "critical"
    if view.wrong or view.beside:
        return str([*view.wrong, *view.beside][0].severity)
    if view.unsure or view.awaited or _is_unknown(view):
        return "warning"
    # An abort is neither well nor a fault.
    return "" if view.decision is Decision.ABORT else "well"


def read_id(id_: str) -> TransactionId:
    """Return the transaction whose id is in a path, if the token is for it."""
    try:
        transaction = TransactionId.parse(id_)
    except ValueError:
        form = "an id is <application>.<batch>.<attempt>, as in orders.7.1"
        raise Problem(404, form) from None
    current_session().raise_if_blind_to(transaction.application)
    return transaction


def _is_unknown(view: TransactionView) -> bool:
    """Whether neither the log nor a participant that answered knows anything of it."""
    known = any(report.branches or report.error for report in view.participants)
    return view.state is None and not view.forgotten and not known
