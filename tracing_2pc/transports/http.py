"""One participant over HTTP, without guessing."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import IO, Any, Final
from urllib.parse import urlencode

import urllib3

from tracing_2pc.errors import (
    ParticipantRefusedError,
    ParticipantUnavailableError,
)
from tracing_2pc.model import (
    BranchId,
    Identity,
    InDoubt,
    Listing,
    Shown,
    TransactionId,
    TransactionRecord,
)
from tracing_2pc.states import Decision, ParticipantState, Vote
from tracing_2pc.telemetry.spans import client_span, current_carrier
from tracing_2pc.transports import reading, wire
from tracing_2pc.transports.connection import (
    Answer,
    ask,
    one_word,
    path_of,
    pool_of,
    why_silent,
)

_COMMITTED: Final = frozenset({"committed"})
_ABORTED: Final = frozenset({"aborted"})
_PREPARED: Final = frozenset({"prepared"})
_KNOWN: Final = _COMMITTED | _ABORTED | _PREPARED
_NOT_KNOWN: Final = {
    404: ParticipantState.UNKNOWN,
    410: ParticipantState.FORGOTTEN,
}


@dataclasses.dataclass(frozen=True)
class HttpParticipant:
    """A participant as its contract describes it. Picklable; opens nothing until used.

    Args:
        name: its configured name.
        url: base URL, without a password.
        token: reference to the bearer token, read in each process when first used;
            None for a participant that was told to be insecure.
        timeout: seconds, to connect and for each read.
    """

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
    ) -> Vote:
        """Send a branch, and return the vote for exactly these rows and this digest.

        Safe to repeat with the same bytes: the participant answers the same.

        Raises:
            ParticipantRefusedError: it votes abort, or counted something else.
            ParticipantUnavailableError: no answer; it may be prepared.
        """
        headers = {
            wire.TRANSACTION_HEADER: str(transaction),
            wire.BRANCH_HEADER: str(branch),
            wire.ROWS_HEADER: str(rows),
            wire.DIGEST_HEADER: digest,
            "Content-Type": wire.ARROW,
            "Content-Length": str(length),
        }
        with contextlib.closing(body()) as stream:
            answer = self._post("/prepare", stream, headers, transaction)
        request = self._request("POST /prepare", transaction)
        refused = self._no_vote(answer, request, rows, digest)
        if refused is not None:
            raise request.error(ParticipantRefusedError, refused, answer.status)
        return Vote.COMMIT

    @staticmethod
    def _no_vote(
        answer: Answer, request: wire.Request, rows: int, digest: str
    ) -> str | None:
        """Say why an answer is no vote for what was sent; None if it is one."""
        why = wire.refusal_of_prepare(
            answer.status, answer.content_type, answer.body, request
        )
        if why is not None:
            return why
        item = _read(answer, request, _PREPARED)
        if (item.get("rows"), item.get("digest")) != (rows, digest):
            other = f"other rows than the {rows} sent, or another digest"
            return f" counted {other}, in its answer to {request}"
        if item.get("vote") != Vote.COMMIT:
            return f" prepared {rows} rows and does not vote commit: {request}"
        return None

    def commit(self, record: TransactionRecord) -> None:
        """Commit the branches chosen for this participant, and seal."""
        branches = [
            {"branch": str(r.branch), "rows": r.rows, "digest": r.digest}
            for r in record.chosen(self.name)
        ]
        self._control(
            "/commit",
            record.id,
            _COMMITTED,
            branches=branches,
            watermark=record.watermark,
        )

    def abort(self, record: TransactionRecord) -> None:
        """Abort the whole transaction there, and seal."""
        self._control("/abort", record.id, _ABORTED, watermark=record.watermark)

    def abort_branch(
        self, transaction: TransactionId, branch: BranchId, digest: str
    ) -> None:
        """Abort one branch, by the task that wrote it, before its receipt is out."""
        self._control(
            "/abort", transaction, _ABORTED, branch=str(branch), digest=digest
        )

    def resolve(
        self, transaction: TransactionId, outcome: Decision, reason: str
    ) -> None:
        """Have an orphan committed or aborted there, by hand; needs the role operator.

        Not repeated: the answer to a second one is 409, because it is sealed.

        Raises:
            ParticipantRefusedError: nothing is prepared, or it is sealed already.
            ParticipantUnavailableError: no answer that can be trusted, a token without
                the role too; it may or may not have happened.
        """
        order = {
            "transaction_id": str(transaction),
            "outcome": str(outcome),
            "reason": reason,
        }
        body, headers = json.dumps(order).encode(), {"Content-Type": wire.JSON}
        states = _COMMITTED if outcome is Decision.COMMIT else _ABORTED
        answer = self._post("/resolve", body, headers, transaction)
        _read(answer, self._request("POST /resolve", transaction), states)

    def prepared(self, application: str | None = None) -> Listing:
        """List what is in doubt there, oldest first; changes nothing.

        The list takes little more than `timeout` in all. One that ends early, by an
        error of a later page, by time or by `reading.PAGES`, says so; and so does one
        of a participant that shows our token one application only.

        Raises:
            ParticipantUnavailableError: no first page that can be trusted.
        """
        query = {"state": "prepared", "limit": str(reading.PAGE)}
        if application is not None:
            query["application"] = application
        until = time.monotonic() + self.timeout
        found: list[InDoubt] = []
        now: float | None = None
        only: str | None = None
        missing: str | None = None
        for number in range(reading.PAGES):
            left = until - time.monotonic()
            if number and left <= 0:
                missing = f"took over {self.timeout:g} s"
                break
            try:
                page = self._page(query, max(left, 0.001))
            except ParticipantUnavailableError as error:
                if not number:
                    raise
                missing = str(error)
                break
            found += page.branches
            now, only = page.now, page.only if application is None else None
            if page.next is None:
                break
            query["after"] = page.next
        else:
            missing = f"is longer than {len(found)} branches"
        return Listing(tuple(found), missing, now, only)

    def _page(self, query: Mapping[str, str], timeout: float) -> reading.Page:
        answer = self._get(f"/transactions?{urlencode(query)}", timeout)
        request = self._request("GET /transactions")
        if answer.status != 200:
            why = wire.reason_of(answer.content_type, answer.body)
            why = f" answered {answer.status} to {request}: {why}"
            raise request.error(ParticipantUnavailableError, why, answer.status)
        try:
            return reading.read_page(answer.content_type, answer.body)
        except ValueError:
            why = f" answered 200 without a list to {request}"
            raise request.error(ParticipantUnavailableError, why, 200) from None

    def show(self, transaction: TransactionId) -> Shown:
        """Return what it says of one transaction; changes nothing.

        Unknown (404) and forgotten (410) are answers, neither is an outcome.

        Raises:
            ParticipantRefusedError: it does not take the id.
            ParticipantUnavailableError: no answer that can be trusted.
        """
        route, most = f"/transactions/{transaction}", wire.MAX_SHOWN_BYTES
        answer = self._get(route, self.timeout, transaction, most)
        request = self._request(f"GET {route}", transaction)
        try:
            return reading.read_shown(_read(answer, request, _KNOWN))
        except ParticipantRefusedError as error:
            found = _NOT_KNOWN.get(answer.status)
            if found is None or error.state != found:
                raise
            return Shown(found)
        except ValueError:
            why = f" answered 200 to {request} and does not say what it holds"
            raise request.error(ParticipantUnavailableError, why, 200) from None

    def identity(self) -> Identity:
        """Return which journal it has, and how applications call it; changes nothing.

        Raises:
            ParticipantUnavailableError: no answer that can be trusted.
        """
        answer = self._get("/whoami", self.timeout)
        request = self._request("GET /whoami")
        if answer.status == 200:
            with contextlib.suppress(ValueError):
                return reading.read_identity(answer.content_type, answer.body)
        why = wire.reason_of(answer.content_type, answer.body)
        why = f" answered {answer.status} to {request}: {why}"
        raise request.error(ParticipantUnavailableError, why, answer.status)

    def _request(
        self, route: str, transaction: TransactionId | None = None
    ) -> wire.Request:
        about = None if transaction is None else str(transaction)
        return wire.Request(self.name, self.url, self.token, route, about)

    def authorization(self) -> dict[str, str]:
        """Return the header that admits us; the token is read anew each time.

        Raises:
            ConfigurationError: there is none, or it is more than one word.
        """
        if not self.token:
            return {}
        what = f"token of participant {self.name!r}"
        return {"Authorization": f"Bearer {one_word(self.token, what)}"}

    def _control(
        self,
        route: str,
        transaction: TransactionId,
        states: frozenset[str],
        **fields: Any,
    ) -> None:
        body = json.dumps({"transaction_id": str(transaction), **fields}).encode()
        headers = {"Content-Type": wire.JSON}
        answer = self._post(route, body, headers, transaction)
        _read(answer, self._request(f"POST {route}", transaction), states)

    def _post(
        self,
        route: str,
        body: bytes | IO[bytes],
        headers: dict[str, str],
        transaction: TransactionId,
    ) -> Answer:
        headers.update(self._standing_headers())
        target = pool_of(self.url, self.timeout, os.getpid())
        about: dict[str, str | int | float | bool] = {
            "http.request.method": "POST",
            "tpc.participant": self.name,
            "tpc.transaction.id": str(transaction),
            "server.address": target.host,
            "server.port": target.port or 0,
        }
        with client_span(f"POST {route}", about) as span:
            headers.update(current_carrier())
            answer = self._ask("POST", route, body, headers, self.timeout, transaction)
            span.set("http.response.status_code", answer.status)
        return answer

    def _get(
        self,
        route: str,
        timeout: float,
        transaction: TransactionId | None = None,
        most: int = wire.MAX_ANSWER_BYTES,
    ) -> Answer:
        """Read, in the caller's trace if there is one; no span of our own."""
        headers = self._standing_headers() | current_carrier()
        return self._ask("GET", route, None, headers, timeout, transaction, most)

    def _standing_headers(self) -> dict[str, str]:
        about = {
            wire.VERSION_HEADER: wire.VERSION,
            wire.PARTICIPANT_HEADER: self.name,
            "Accept": wire.JSON,
        }
        return about | self.authorization()

    def _ask(
        self,
        method: str,
        route: str,
        body: bytes | IO[bytes] | None,
        headers: Mapping[str, str],
        timeout: float,
        transaction: TransactionId | None,
        most: int = wire.MAX_ANSWER_BYTES,
    ) -> Answer:
        pool = pool_of(self.url, self.timeout, os.getpid())
        try:
            path = path_of(self.url) + route
            return ask(pool, method, path, body, headers, timeout, most)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            request = self._request(f"{method} {route.partition('?')[0]}", transaction)
            why = f": {why_silent(error, request, timeout)}"
            raise request.error(ParticipantUnavailableError, why) from error


def _read(
    answer: Answer, request: wire.Request, states: frozenset[str]
) -> Mapping[str, Any]:
    return wire.read_answer(
        answer.status,
        answer.content_type,
        answer.body,
        request=request,
        states=states,
    )
