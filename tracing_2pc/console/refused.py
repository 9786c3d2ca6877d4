"""The requests that partners refused: their list, one of them, and what is done."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Final

from flask import Blueprint, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from tracing_2pc.console.login import current_session
from tracing_2pc.console.pages import place_for_form, read_reason
from tracing_2pc.console.sessions import Notice
from tracing_2pc.console.state import ConsoleState
from tracing_2pc.core.errors import (
    ConfigurationError,
    ContractError,
    ParticipantError,
    ParticipantRefusedError,
)
from tracing_2pc.core.model import QuarantinedRequest, RequestKey
from tracing_2pc.core.states import RequestState
from tracing_2pc.http.error_responses import Problem
from tracing_2pc.operations.outbox import STATE_WORDS, drop_request, send_again
from tracing_2pc.operations.resolve import LONGEST_REASON


@dataclasses.dataclass(frozen=True, slots=True)
class RequestOption:
    """What an operator can do with a refused request; `word` is its word in a form."""

    word: str
    title: str
    effect: str
    safe: bool

    def fingerprint(self, participant: str, found: QuarantinedRequest) -> str:
        """Return a digest of what a person is shown: to see that it has changed."""
        shown = (self.word, participant, *dataclasses.astuple(found))
        return hashlib.sha256(repr(shown).encode()).hexdigest()[:32]


OPTIONS: Final = (
    RequestOption(
        "again",
        "Send again",
        "It goes back into its queue with the same idempotency key, before what is not "
        "sent yet. What was sent meanwhile has overtaken it.",
        safe=True,
    ),
    RequestOption(
        "drop",
        "Drop",
        "It will never be sent. It stays on record at the participant, with your name "
        "and reason.",
        safe=False,
    ),
)


class RefusedPages(Blueprint):
    """Show what outboxes have in quarantine; the log is neither read nor changed."""

    def __init__(self, state: ConsoleState) -> None:
        super().__init__("refused", __name__)
        self._state = state
        one = "/refused/<participant>/<key>"
        self.get("/refused")(self.requests)
        self.get(one)(self.request)
        self.post(f"{one}/confirm")(self.confirm)
        self.post(f"{one}/resolve")(self.resolve)

    def requests(self) -> ResponseReturnValue:
        """List the oldest of each outbox; who gives no list hides no other."""
        session = current_session()
        with self._state.asking() as free:
            bound = session.caller.application
            quarantines = self._state.refused.get(bound) if free else None
        notice, session.notice = session.notice, None
        return render_template("refused.html", quarantines=quarantines, notice=notice)

    def request(self, participant: str, key: str) -> ResponseReturnValue:
        """Show one request, and what can be done with it."""
        wanted = self._read(participant, key)
        with self._state.asking() as free:
            if not free:
                wait = "other pages wait for participants that do not answer"
                raise Problem(503, f"not read: {wait}. Look again in some seconds")
            found, now = self._find(participant, wanted)
        if found is None:
            raise Problem(404, _not_there(participant, wanted))
        return render_template(
            "refused_request.html",
            participant=participant,
            found=found,
            now=now,
            options=OPTIONS,
            longest=LONGEST_REASON,
        )

    def confirm(self, participant: str, key: str) -> ResponseReturnValue:
        """Show once more what would be done; change nothing."""
        wanted = self._read(participant, key)
        with place_for_form(self._state):
            option, found, now = self._chosen(participant, wanted)
            if found is None:
                raise Problem(409, _not_there(participant, wanted))
            return _confirmation(option, participant, found, now)

    def resolve(self, participant: str, key: str) -> ResponseReturnValue:
        """Do what was confirmed, if the request still is what was shown.

        Of a request that is not in quarantine any more nothing changes, and the
        outbox answers what has become of it. So a form may be sent twice.
        """
        wanted = self._read(participant, key)
        with place_for_form(self._state):
            option, found, now = self._chosen(participant, wanted)
            wrong, status = _objection(option, participant, wanted, found)
            if wrong and found is None:
                raise Problem(status, wrong)
            if wrong and found is not None:
                return _confirmation(option, participant, found, now, wrong), status
            state = self._carry_out(option, participant, wanted)
        text = f"Request {wanted} at {participant} {STATE_WORDS[state]}."
        current_session().notice = Notice(text, well=True)
        return redirect(url_for("refused.requests"), 303)

    def _chosen(
        self, participant: str, key: RequestKey
    ) -> tuple[RequestOption, QuarantinedRequest | None, float]:
        """Return what a form asks for, and the request as it is now."""
        word = request.form.get("option")
        option = next((option for option in OPTIONS if option.word == word), None)
        if option is None:
            raise Problem(400, "option: expected again or drop")
        self._state.request.drop((participant, key))
        return option, *self._find(participant, key)

    def _find(
        self, participant: str, key: RequestKey
    ) -> tuple[QuarantinedRequest | None, float]:
        """Return a request, None if it is not in quarantine; and the outbox's clock."""
        quarantines = self._state.request.get((participant, key))
        if (why := quarantines.unreadable.get(participant)) is not None:
            raise Problem(502, why)
        if (listing := quarantines.listings.get(participant)) is None:
            raise Problem(404, f"{participant} has no outbox")
        found = (one for one in listing.requests if one.key == key)
        return next(found, None), listing.now

    def _carry_out(
        self, option: RequestOption, participant: str, key: RequestKey
    ) -> RequestState:
        carry_out = send_again if option.word == "again" else drop_request
        at, who = self._state.sources.participants[participant], current_session().who
        try:
            return carry_out(at, key, who=who, reason=_reason(option))
        except (ConfigurationError, ContractError, ParticipantRefusedError) as error:
            raise Problem(409, str(error)) from None
        except ParticipantError as error:
            raise Problem(502, f"{error}; look at it again") from None
        finally:
            self._state.drop_refused()

    def _read(self, participant: str, key: str) -> RequestKey:
        """Return the key in a path, if the token is for it and the participant ours."""
        try:
            read = RequestKey.parse(key)
        except ValueError as error:
            raise Problem(404, str(error)) from None
        session = current_session()
        if not session.may_see(read.transaction.application):
            raise Problem(403, f"your token is for {session.caller.application} only")
        if participant not in self._state.sources.participants:
            raise Problem(404, "no participant of that name has an address here")
        return read


def _objection(
    option: RequestOption,
    participant: str,
    key: RequestKey,
    found: QuarantinedRequest | None,
) -> tuple[str | None, int]:
    """Return why a confirmed form is not carried out, and the status."""
    given = request.form.get("fingerprint", "")
    if found is not None and given != option.fingerprint(participant, found):
        return "The request has changed since: read it again.", 409
    if not option.safe and request.form.get("row", "").strip() != str(key.row):
        return "Type the number of the row: it is the last one of the key.", 400
    return None, 200


def _confirmation(
    option: RequestOption,
    participant: str,
    found: QuarantinedRequest,
    now: float,
    wrong: str | None = None,
) -> str:
    return render_template(
        "refused_confirm.html",
        option=option,
        participant=participant,
        found=found,
        now=now,
        reason=_reason(option),
        wrong=wrong,
    )


def _reason(option: RequestOption) -> str:
    """Return the reason of a form; only what is safe needs none."""
    if option.safe and not request.form.get("reason", "").strip():
        return ""
    return read_reason()


def _not_there(participant: str, key: RequestKey) -> str:
    since = "it was sent again or dropped, or never was there"
    return f"request {key} is not in quarantine at {participant}: {since}"
