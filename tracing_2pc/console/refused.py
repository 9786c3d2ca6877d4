"""The requests that partners refused: their list, and one with its actions."""

from __future__ import annotations

from typing import Final

from flask import Blueprint, render_template
from flask.typing import ResponseReturnValue

from tracing_2pc.console.login import current_session, page
from tracing_2pc.console.state import ConsoleState
from tracing_2pc.core.model import QuarantinedRequest, RequestKey
from tracing_2pc.operations.actions.outbox import describe_gone, facts_of, offers
from tracing_2pc.operations.resolve import LONGEST_REASON
from tracing_2pc.wire.error_responses import Problem

_BUSY: Final = (
    "not read: other pages wait for participants that do not answer. Look again in "
    "some seconds"
)
_NO_ADDRESS: Final = "no participant of that name has an address here"


class RefusedPages(Blueprint):
    """Show what partners refused; the log is neither read nor changed."""

    def __init__(self, state: ConsoleState) -> None:
        super().__init__("refused", __name__)
        self._state = state
        self.get("/refused")(self.requests)
        self.get("/refused/<participant:participant>/<key>")(self.request)

    @page
    def requests(self) -> ResponseReturnValue:
        """List the oldest of each outbox; one without a list hides no other."""
        session = current_session()
        with self._state.asking() as free:
            bound = session.caller.application
            refused = self._state.refused.get(bound) if free else None
        return render_template("refused.html", refused=refused)

    @page
    def request(self, participant: str, key: str) -> ResponseReturnValue:
        """Show one request, and its actions."""
        read = self._read(participant, key)
        with self._state.asking() as free:
            if not free:
                raise Problem(503, _BUSY)
            request = self._find(participant, read)
        return render_template(
            "refused_request.html",
            key=read,
            transaction=read.transaction,
            known=facts_of(participant, request),
            offers=list(offers(participant, request)),
            longest=LONGEST_REASON,
        )

    def _find(self, participant: str, key: RequestKey) -> QuarantinedRequest:
        refused = self._state.request.get((participant, key))
        if (reason := refused.unreadable.get(participant)) is not None:
            raise Problem(502, reason)
        if (listing := refused.listings.get(participant)) is None:
            raise Problem(404, f"{participant} has no outbox")
        for request in listing.requests:
            if request.key == key:
                return request
        raise Problem(404, describe_gone(participant, key))

    def _read(self, participant: str, key: str) -> RequestKey:
        """Return the key in a path, if the token is for it and the participant ours."""
        try:
            read = RequestKey.parse(key)
        except ValueError as error:
            raise Problem(404, str(error)) from None
        current_session().raise_if_blind_to(read.transaction.application)
        if participant not in self._state.sources.participants:
            raise Problem(404, _NO_ADDRESS)
        return read
