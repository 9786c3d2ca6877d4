"""One participant over any transport, without guessing."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import IO, Any, ClassVar, Final, TypeVar
from urllib.parse import urlencode, urlsplit

from tracing_2pc.core import content
from tracing_2pc.core.errors import (
    ConfigurationError,
    ParticipantRefusedError,
    ParticipantUnavailableError,
    RejectedRowsError,
)
from tracing_2pc.core.model import (
    BranchId,
    Identity,
    InDoubt,
    Listing,
    ParticipantDescription,
    QuarantinedRequest,
    QuarantineListing,
    RequestKey,
    Shown,
    TransactionId,
    TransactionRecord,
)
from tracing_2pc.core.settings import read_secret
from tracing_2pc.core.states import (
    OF_CALLER,
    Decision,
    ParticipantState,
    Refusal,
    RequestState,
    Vote,
)
from tracing_2pc.tracing.spans import client_span, current_carrier, set_status
from tracing_2pc.wire import contract, reading
from tracing_2pc.wire.contract import Answer, NoAnswerError, Silence, read_answer
from tracing_2pc.wire.error_responses import OK, refusal_of

T = TypeVar("T")

SEARCH: Final = 12
"""Times `timeout` that a search for rejected rows is waited for: it writes many times,
and its answer is not kept, as a vote is."""


@dataclasses.dataclass(frozen=True)
class WireParticipant(abc.ABC):
    """A participant as its contract describes it. Picklable; opens nothing until used.

    `RemoteParticipant` has the promises, `open_participant` the arguments.
    """

    default_ports: ClassVar[Mapping[str, int]] = {}
    """Of each scheme whose URLs may leave the port out, where they go then."""

    name: str
    url: str
    token: str | None
    timeout: float

    def prepare(
        self,
        transaction: TransactionId,
        branch: BranchId,
        body: Callable[[], IO[bytes]],
        *,
        rows: int,
        length: int,
        digest: str,
        journal: str | None = None,
        name_rows: int | None = None,
    ) -> Vote:
        headers = {
            contract.TRANSACTION_HEADER: str(transaction),
            contract.BRANCH_HEADER: str(branch),
            contract.ROWS_HEADER: str(rows),
            contract.DIGEST_HEADER: digest,
            "Content-Type": content.ARROW,
            "Content-Length": str(length),
        }
        timeout = self.timeout
        if name_rows is not None:
            headers[contract.NAME_ROWS_HEADER] = str(name_rows)
            timeout *= SEARCH
        with contextlib.closing(body()) as stream:
            about = transaction, journal, timeout
            answer = self._post("/prepare", stream, headers, *about)
        if (refused := _no_vote(answer, rows, digest)) is not None:
            refusal, item = refusal_of(answer.status), contract.read_object(answer)
            kind: Callable[..., ParticipantRefusedError] = ParticipantRefusedError
            if rejected := name_rows and reading.read_rejected(item, rows):
                kind = partial(RejectedRowsError, rejected)
            state = (item or {}).get("state")
            raise answer.request.error(kind, refused, refusal, state)
        return Vote.COMMIT

    def commit(self, record: TransactionRecord) -> None:
        branches = [
            {"branch": str(r.branch), "rows": r.rows, "digest": r.digest}
            for r in record.chosen(self.name)
        ]
        self._control(
            "/commit",
            record.id,
            "committed",
            record.journal_of(self.name),
            branches=branches,
            forgotten_through=record.forgotten_through,
        )

    def abort(self, record: TransactionRecord) -> None:
        self._control(
            "/abort",
            record.id,
            "aborted",
            record.journal_of(self.name),
            forgotten_through=record.forgotten_through,
        )

    def abort_branch(
        self,
        transaction: TransactionId,
        branch: BranchId,
        digest: str,
        journal: str | None = None,
    ) -> None:
        fields = {"branch": str(branch), "digest": digest}
        self._control("/abort", transaction, "aborted", journal, **fields)

    def resolve(
        self,
        transaction: TransactionId,
        outcome: Decision,
        reason: str,
        journal: str | None = None,
    ) -> None:
        state = "committed" if outcome is Decision.COMMIT else "aborted"
        fields = {"outcome": str(outcome), "reason": reason}
        self._control("/resolve", transaction, state, journal, **fields)

    def prepared(self, application: str | None = None) -> Listing:
        query = {"state": "prepared", "limit": str(reading.PAGE)}
        if application is not None:
            query["application"] = application
        until = time.monotonic() + self.timeout
        branches: list[InDoubt] = []
        now: float | None = None
        only: str | None = None
        missing: str | None = None
        for number in range(reading.PAGES):
            left = until - time.monotonic()
            if number and left <= 0:
                missing = f"took over {self.timeout:g} s"
                break
            route = f"/transactions?{urlencode(query)}"
            try:
                answer = self._get(route, timeout=max(left, 0.001))
                page, following = _read(answer, reading.read_page, "a list")
            except ParticipantUnavailableError as error:
                if not number:
                    raise
                missing = str(error)
                break
            branches += page.branches
            now, only = page.now, page.only if application is None else None
            if following is None:
                break
            query["after"] = following
        else:
            missing = f"is longer than {len(branches)} branches"
        return Listing(tuple(branches), missing, now, only)

    def show(self, transaction: TransactionId, journal: str | None = None) -> Shown:
        """Unknown is 404, forgotten is 410. Any other refusal is about the id."""
        route, most = f"/transactions/{transaction}", contract.MAX_SHOWN_BYTES
        answer = self._get(route, transaction, most=most, journal=journal)
        try:
            return reading.read_shown(
                read_answer(answer, "committed", "aborted", "prepared")
            )
        except ParticipantRefusedError as error:
            unknown = error.refusal in (Refusal.UNKNOWN, Refusal.FORGOTTEN)
            if not unknown or error.state != error.refusal:
                raise
            other = reading.read_committed(contract.read_object(answer))
            return Shown(ParticipantState(error.refusal), committed=other)
        except ValueError:
            detail = f" answered 200 to {answer.request} and does not say what it holds"
            raise answer.request.error(ParticipantUnavailableError, detail) from None

    def quarantined(
        self,
        application: str | None = None,
        state: RequestState = RequestState.QUARANTINED,
        limit: int = 100,
        key: RequestKey | None = None,
    ) -> QuarantineListing:
        query = {"state": str(state)}
        if application is not None:
            query["application"] = application
        if key is not None:
            query["key"] = str(key)
        requests: list[QuarantinedRequest] = []
        while True:
            query["limit"] = str(min(reading.PAGE, limit - len(requests)))
            answer = self._get(f"/outbox?{urlencode(query)}")
            page, following = _read(answer, reading.read_quarantine, "a quarantine")
            requests += page.requests[: limit - len(requests)]
            more = following is not None
            if not more or not page.requests or len(requests) >= limit:
                return QuarantineListing(tuple(requests), page.now, more)
            query["after"] = str(following)

    def send_again(self, key: RequestKey, *, who: str, reason: str) -> RequestState:
        states = (RequestState.WAITING, RequestState.SENT)
        return self._order("/outbox/again", key, who, reason, *states)

    def drop_request(self, key: RequestKey, *, who: str, reason: str) -> RequestState:
        return self._order("/outbox/drop", key, who, reason, RequestState.DROPPED)

    def _order(
        self, route: str, key: RequestKey, who: str, reason: str, *states: RequestState
    ) -> RequestState:
        fields = {"key": str(key), "who": who, "reason": reason}
        return RequestState(self._send(route, key.transaction, fields, *states))

    def identity(self) -> Identity:
        return self._whoami().identity

    def _whoami(self) -> reading.WhoAmI:
        return _read(self._get("/whoami"), reading.read_whoami, "an identity")

    def describe(self) -> ParticipantDescription:
        description = ParticipantDescription(self.name, self.url)
        try:
            ready = self._ask("GET", "/health/ready", None, {})
        except ParticipantUnavailableError as error:
            message = str(error).removeprefix(f"participant {self.name!r}: ")
            cause = error.__cause__
            never = (
                isinstance(cause, NoAnswerError)
                and cause.silence is Silence.NOT_OFFERED
            )
            return dataclasses.replace(
                description, unreachable=message, answers=not never
            )
        unready = None
        if ready.status != OK:
            reason = contract.reason_of(ready)
            unready = f"answered {ready.status} to /health/ready: {reason}"
        description = dataclasses.replace(description, unready=unready)
        before = time.time()
        try:
            listing = self.prepared()
            now = (before + time.time()) / 2
            who = self._whoami()
        except ConfigurationError as error:
            return dataclasses.replace(description, refused=str(error), sent=False)
        except ParticipantUnavailableError as error:
            if error.refusal in OF_CALLER:
                return dataclasses.replace(description, refused=str(error))
            return dataclasses.replace(description, unready=unready or str(error))
        return dataclasses.replace(
            description,
            role=who.role,
            skew=None if listing.now is None else listing.now - now,
            in_doubt=len(listing.branches),
            missing=listing.missing,
            only=listing.only,
            gauges=who.gauges,
            identity=who.identity,
            pooled=who.pooled,
            unfit=who.unfit,
            version=who.version,
        )

    def _control(
        self,
        route: str,
        transaction: TransactionId,
        state: str,
        journal: str | None,
        **fields: Any,
    ) -> None:
        fields["transaction_id"] = str(transaction)
        self._send(route, transaction, fields, state, journal=journal)

    def _send(
        self,
        route: str,
        transaction: TransactionId,
        fields: Any,
        *states: str,
        journal: str | None = None,
    ) -> str:
        """Send JSON; return the state that it acknowledges."""
        body, headers = json.dumps(fields).encode(), {"Content-Type": contract.JSON}
        answer = self._post(route, body, headers, transaction, journal)
        return str(read_answer(answer, *states)["state"])

    def _post(
        self,
        route: str,
        body: bytes | IO[bytes],
        headers: Mapping[str, str],
        transaction: TransactionId,
        journal: str | None = None,
        timeout: float | None = None,
    ) -> Answer:
        headers = {**headers, **self._standing_headers(), **_meaning(journal)}
        target = urlsplit(self.url)
        about: dict[str, str | int | float | bool] = {
            "http.request.method": "POST",
            "url.full": self.url + route,  # a participant's URL has no secrets
            "tpc.request": route[1:],
            "tpc.participant": self.name,
            "tpc.transaction.id": str(transaction),
            "server.address": target.hostname or "",
            "server.port": target.port or self.default_ports.get(target.scheme, 0),
        }
        with client_span(f"POST {route}", about) as span:
            headers |= current_carrier()
            answer = self._ask("POST", route, body, headers, transaction, timeout)
            error = answer.status >= 400 or not answer.status
            set_status(span, answer.status, error=error)
        return answer

    def _get(
        self,
        route: str,
        transaction: TransactionId | None = None,
        timeout: float | None = None,
        most: int = contract.MAX_ANSWER_BYTES,
        journal: str | None = None,
    ) -> Answer:
        """Read, in the caller's trace if there is one; no span of our own."""
        headers = self._standing_headers() | current_carrier() | _meaning(journal)
        return self._ask("GET", route, None, headers, transaction, timeout, most)

    def _standing_headers(self) -> dict[str, str]:
        """Return the headers of each request; the token is read again each time."""
        headers = {
            contract.VERSION_HEADER: contract.VERSION,
            contract.PARTICIPANT_HEADER: self.name,
            "Accept": contract.JSON,
        }
        if self.token:
            purpose = f"token of participant {self.name!r}"
            token = read_secret(self.token, purpose)
            if not token.isascii() or not token.isprintable() or " " in token:
                raise ConfigurationError(
                    f"{purpose}: {self.token} must hold one token, and no more"
                )
            headers["Authorization"] = f"Bearer {token}"
        return headers

    def _ask(
        self,
        method: str,
        route: str,
        body: bytes | IO[bytes] | None,
        headers: Mapping[str, str],
        transaction: TransactionId | None = None,
        timeout: float | None = None,
        most: int = contract.MAX_ANSWER_BYTES,
    ) -> Answer:
        request = contract.Request(
            self.name,
            self.url,
            self.token,
            f"{method} {route.partition('?')[0]}",
            None if transaction is None else str(transaction),
        )
        timeout = self.timeout if timeout is None else timeout
        try:
            exchanged = self.exchange(method, route, body, headers, timeout, most)
        except NoAnswerError as error:
            detail = f": {request.why_silent(error, timeout)}"
            raise request.error(ParticipantUnavailableError, detail) from error
        return Answer(request, *exchanged)

    @abc.abstractmethod
    def exchange(
        self,
        method: str,
        path: str,
        body: bytes | IO[bytes] | None,
        headers: Mapping[str, str],
        timeout: float,
        most: int,
    ) -> tuple[int, str, bytes]:
        """Send one request, once; return its answer's status, type and body.

        A transport is a subclass with this method, and a server that passes requests to
        the participant's routes (`wire.bridge`).

        Args:
            method: GET or POST.
            path: the contract's route, with a query if there is one.
            body: bytes, or a stream that is read once and not held in memory whole; a
                prepare's, of `Content-Length` bytes.
            headers: the contract's, and those of the caller's trace.
            timeout: seconds to connect, for each read, and for the answer in all.
            most: bytes of an answer that are read.

        Raises:
            NoAnswerError: no whole answer, or one that is longer than `most`.
        """


def _meaning(journal: str | None) -> dict[str, str]:
    return {contract.JOURNAL_HEADER: journal} if journal else {}


def _no_vote(answer: Answer, rows: int, digest: str) -> str | None:
    """Return why an answer is no vote for the rows sent; None if it is one."""
    if (refusal := contract.refusal_of_prepare(answer)) is not None:
        return refusal
    item = read_answer(answer, "prepared")
    if (item.get("rows"), item.get("digest")) != (rows, digest):
        other = f"other rows than the {rows} sent, or another digest"
        return f" counted {other}, in its answer to {answer.request}"
    if item.get("vote") != Vote.COMMIT:
        return f" prepared {rows} rows and does not vote commit: {answer.request}"
    return None


def _read(answer: Answer, read: Callable[[object], T], content: str) -> T:
    """Read an answer that names no transaction."""
    request, status = answer.request, answer.status
    if status != OK:
        detail = f" answered {status} to {request}: {contract.reason_of(answer)}"
        refusal = refusal_of(status)
        raise request.error(ParticipantUnavailableError, detail, refusal)
    try:
        return read(contract.read_object(answer))
    except ValueError:
        detail = f" answered 200 without {content} to {request}"
        raise request.error(ParticipantUnavailableError, detail) from None
