"""The requests that partners refused: their list, one of them, and what is done."""

from __future__ import annotations

from typing import Final

from flask import render_template, url_for
from flask.typing import ResponseReturnValue

from tracing_2pc.console.acting import ActingPages
from tracing_2pc.console.login import current_session, page
from tracing_2pc.console.pages import read_id
from tracing_2pc.console.state import ConsoleState
from tracing_2pc.core.log_reader import MOST
from tracing_2pc.core.model import QuarantinedRequest, RequestKey
from tracing_2pc.inspection.participants import list_refused
from tracing_2pc.operations.acts import (
    Act,
    act_about_batch,
    act_about_request,
    facts_of,
    words_about,
)
from tracing_2pc.operations.resolve import LONGEST_REASON
from tracing_2pc.wire.error_responses import Problem

_BUSY: Final = (
    "not read: other pages wait for participants that do not answer. Look again in "
    "some seconds"
)
_NO_ADDRESS: Final = "no participant of that name has an address here"


class RefusedPages(ActingPages):
    """Show what partners refused; the log is neither read nor changed.

    Of a request that is there no more nothing changes, and the outbox answers what has
    become of it: so a form may be sent twice.
    """

    def __init__(self, state: ConsoleState) -> None:
        one = "/refused/<participant:participant>/<key>"
        super().__init__("refused", state, one)
        self.get("/refused")(self.requests)
        self.get(one)(self.request)

    @page
    def requests(self) -> ResponseReturnValue:
        """List the oldest of each outbox; who gives no list hides no other."""
        session = current_session()
        with self._state.asking() as free:
            bound = session.caller.application
            refused = self._state.refused.get(bound) if free else None
        return render_template("refused.html", refused=refused)

    @page
    def request(self, participant: str, key: str) -> ResponseReturnValue:
        """Show one request, and what can be done with it."""
        read = self._read(participant, key)
        with self._state.asking() as free:
            if not free:
                raise Problem(503, _BUSY)
            found, acts = self._acts(participant, read)
        if acts and acts[0].gone:
            raise Problem(404, acts[0].gone)
        facts = facts_of(participant, found) if found else ()
        return render_template(
            "refused_request.html",
            key=read,
            transaction=read.transaction,
            known=facts,
            acts=acts,
            longest=LONGEST_REASON,
        )

    def acts(self, **path: str) -> tuple[str, str, list[Act]]:
        """Return them for the request as it is now."""
        participant, key = path["participant"], self._read(**path)
        self._state.request.drop((participant, key))
        return str(key), "a refused request", self._acts(participant, key)[1]

    def changed(self, **_path: str) -> str:
        """Have refused requests listed anew; return their list."""
        self._state.drop_refused()
        return url_for("refused.requests")

    def _acts(
        self, participant: str, key: RequestKey
    ) -> tuple[QuarantinedRequest | None, list[Act]]:
        """Return the request, and what can be done: nothing where it goes on itself."""
        refused = self._state.request.get((participant, key))
        if (why := refused.unreadable.get(participant)) is not None:
            raise Problem(502, why)
        if (listing := refused.listings.get(participant)) is None:
            raise Problem(404, f"{participant} has no outbox")
        found = next((one for one in listing.requests if one.key == key), None)
        sources = self._state.sources
        at = {participant: sources.participants[participant]}
        return found, [
            act_about_request(word, key, at, found, sources.settings)
            for word in words_about(found)
        ]

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


class RefusedBatchPages(ActingPages):
    """Have all that was refused of a transaction at one participant sent again."""

    def __init__(self, state: ConsoleState) -> None:
        all_of = "/refused/<participant:participant>/all/<id_>"
        super().__init__("refused_batch", state, all_of)
        self.get(all_of)(self.batch)

    @page
    def batch(self, participant: str, id_: str) -> ResponseReturnValue:
        """Show what would be sent again."""
        with self._state.asking() as free:
            if not free:
                raise Problem(503, _BUSY)
            _, _, acts = self.acts(participant=participant, id_=id_)
        if acts[0].gone:
            raise Problem(404, acts[0].gone)
        return render_template(
            "refused_request.html",
            key=f"all of {id_}",
            transaction=id_,
            known=acts[0].facts,
            acts=acts,
            longest=LONGEST_REASON,
        )

    def acts(self, **path: str) -> tuple[str, str, list[Act]]:
        """Return the one that there is, for the requests as they are now."""
        name, transaction = path["participant"], read_id(path["id_"])
        sources = self._state.sources
        if name not in sources.participants:
            raise Problem(404, _NO_ADDRESS)
        at = {name: sources.participants[name]}
        refused = list_refused(at, transaction.application, limit=MOST)
        if (why := refused.unreadable.get(name)) is not None:
            raise Problem(502, why)
        listing = refused.listings.get(name)
        found = [
            one
            for one in (listing.requests if listing else ())
            if one.key.transaction == transaction and one.trouble is None
        ]
        act = act_about_batch(transaction, at, found, sources.settings)
        return f"refused requests of {transaction}", "another one", [act]

    def changed(self, **_path: str) -> str:
        """Have refused requests listed anew; return their list."""
        self._state.drop_refused()
        return url_for("refused.requests")
