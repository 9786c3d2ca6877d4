"""The records: a search through all of them, by pages; and links to traces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import urlencode

from flask import redirect, render_template, request, url_for
from flask.blueprints import Blueprint
from flask.typing import ResponseReturnValue

from tracing_2pc.console.actions import forms_at
from tracing_2pc.console.login import current_session, page
from tracing_2pc.console.pages import read_id, render_board
from tracing_2pc.console.reports import incidents, measured
from tracing_2pc.console.state import ConsoleState
from tracing_2pc.core.links import links_of
from tracing_2pc.core.log_reader import TransactionFilter, TransactionPage
from tracing_2pc.core.model import (
    ParticipantDescription,
    TransactionId,
    check_application,
)
from tracing_2pc.core.settings import check_name
from tracing_2pc.core.states import TransactionState
from tracing_2pc.inspection.evidence import oldest, sum_prepared
from tracing_2pc.inspection.findings import find_not_taken, is_of_another
from tracing_2pc.inspection.participants import Source
from tracing_2pc.inspection.wording import format_count, format_elapsed, parse_time
from tracing_2pc.wire.error_responses import Problem

ROWS: Final = 50
"""Transactions of a page of the search."""

_FIELDS: Final = ("id", "application", "batch", "state", "participant")
_TIMES: Final = ("since", "until")
_UNFINISHED: Final = "unfinished"


class HistoryPages(Blueprint):
    """Read the log alone: no participant is waited for."""

    def __init__(self, state: ConsoleState) -> None:
        super().__init__("history", __name__)
        self._state = state
        self.get("/search")(self.search)
        self.get("/applications/<name>")(self.application)
        self.get("/participants/<participant:name>")(self.participant)
        self.get("/incidents")(self.incidents)
        self.get("/transactions/<id_>/in/<name>")(self.elsewhere)

    @page
    def search(self) -> ResponseReturnValue:
        """List what the fields let through, newest first; an id leads to its page."""
        session, sources = current_session(), self._state.sources
        asked = {name: request.args.get(name, "").strip() for name in _FIELDS + _TIMES}
        if bound := session.caller.application:
            asked["application"] = bound
        rows, wrong, oldest_first = TransactionPage([], ()), "", False
        now = sources.clock.now()
        try:
            if asked["id"]:
                id_ = str(TransactionId.parse(asked["id"]))
                return redirect(url_for("pages.transaction", id_=id_), 303)
            chosen = _filter_of(asked, now)
            oldest_first, rows = chosen.open_only, sources.log.search(chosen)
        except ValueError as error:
            wrong = str(error)
        beyond = ",".join(map(str, rows.beyond))
        return render_template(
            "search.html",
            page=rows,
            wrong=wrong,
            asked=asked,
            next=beyond and f"?{urlencode({**asked, 'beyond': beyond})}",
            states=[_UNFINISHED, *map(str, TransactionState)],
            applications=[bound] if bound else sources.log.applications(),
            participants=list(sources.participants),
            oldest_first=oldest_first,
            now=now,
        ), (400 if wrong else 200)

    @page
    def application(self, name: str) -> ResponseReturnValue:
        """Show what the first page has, of one application; and how it does of late."""
        sources = self._state.sources
        current_session().raise_if_blind_to(name)
        if name not in sources.log.applications():
            raise Problem(404, f"the log knows no application {name[:60]!r}")
        return render_board(self._state, name, self._state.reports.get(name))

    @page
    def participant(self, name: str) -> ResponseReturnValue:
        """Show a participant's state, its branches, and how soon it acknowledges."""
        bound, sources = current_session().caller.application, self._state.sources
        if name not in sources.participants:
            raise Problem(404, "no participant of that name has an address here")
        survey = self._state.survey()
        evidence = survey.evidence if survey else None
        description = evidence.descriptions.get(name) if evidence else None
        prepared = sum_prepared({name: evidence.second[name]}) if evidence else {}
        listing = evidence.refused.get(name) if evidence else None
        return render_template(
            "participant.html",
            name=name,
            description=description,
            known=_facts_of(description, whole=bound is None) if description else (),
            findings=[
                finding
                for finding in (survey.findings if survey else ())
                if isinstance(finding.about, Source)
                and name in (finding.about.participant, *finding.participants)
                and not is_of_another(finding.about, bound)
            ],
            prepared=[
                (id_, held[name])
                for id_, held in sorted(prepared.items(), key=lambda p: -oldest(p[1]))
                if bound in (None, id_.application)
            ],
            outbox=listing
            and sum(
                bound in (None, request.key.transaction.application)
                for request in listing.requests
            ),
            answers=self._state.answers.get((name, bound)),
            forms=forms_at("participant"),
            most=ROWS,
        )

    @page
    def incidents(self) -> ResponseReturnValue:
        """List what persons have ended, newest first, by pages."""
        bound, sources = current_session().caller.application, self._state.sources
        try:
            before = float(request.args.get("before", "inf"))
        except ValueError:
            raise Problem(400, "before: expected a time in Unix seconds") from None
        entries = list(incidents(sources.log, bound, before, ROWS))
        return render_template(
            "incidents.html",
            incidents=entries,
            more=len(entries) == ROWS,
            now=sources.clock.now(),
        )

    def elsewhere(self, id_: str, name: str) -> ResponseReturnValue:
        """Lead to where the setting `links` has the trace of a transaction."""
        sources, transaction = self._state.sources, read_id(id_)
        record = sources.log.read(transaction)
        trace = record.trace_id if record else None
        links = links_of(sources.settings.links, transaction, trace)
        if name not in links:
            raise Problem(404, f"{transaction}: the log has no trace of it to show")
        return redirect(links[name], 303)


def _filter_of(asked: dict[str, str], now: float) -> TransactionFilter:
    """Read the fields; `ValueError` names one that cannot be read."""
    if asked["application"]:
        check_application(asked["application"])
    if asked["participant"]:
        check_name(asked["participant"])
    state = asked["state"]
    if (batch := asked["batch"]) and not (batch.isascii() and batch.isdigit()):
        raise ValueError(f"batch {batch[:40]!r}: expected a whole number")
    since, until = (
        parse_time(text, now) if (text := asked[name]) else None for name in _TIMES
    )
    beyond = request.args.get("beyond", "").split(",")
    return TransactionFilter(
        asked["application"] or None,
        TransactionState(state) if state and state != _UNFINISHED else None,
        state == _UNFINISHED,
        ROWS,
        int(batch[:18]) if batch else None,
        asked["participant"] or None,
        since,
        until,
        tuple(map(TransactionId.parse, filter(None, beyond))),
    )


def _facts_of(
    description: ParticipantDescription, *, whole: bool
) -> Iterator[tuple[str, str]]:
    """Yield how a participant is; without `whole`, nothing about all applications."""
    wrong = description.unreachable or description.unready or description.refused
    yield "Answers", wrong or "yes"
    yield "Address", description.url
    yield "Version", description.version or "not told"
    only = f", of {description.only} only" if description.only else ""
    yield "Role of our token", f"{description.role_of_token}{only}"
    if (skew := description.skew) is not None:
        ahead = "ahead of ours" if skew > 0 else "behind ours"
        yield "Its clock", f"{format_elapsed(abs(skew))} {ahead}"
    if whole and description.role is not None:
        more = f"; {description.missing}" if description.missing else ""
        count = format_count(description.in_doubt, "branch", "branches")
        yield "In doubt", f"{count}{more}"
        for text in find_not_taken(description):
            yield "Its partner", text
        yield from measured(description.gauges)
