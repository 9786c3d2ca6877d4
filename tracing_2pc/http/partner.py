"""The partner's HTTP API: one request, one outcome, nothing guessed.

A partner is an outsider: it gets the trace context, and never the user's baggage.
"""

from __future__ import annotations

import email.utils
import os
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

import urllib3

from tracing_2pc.core import names
from tracing_2pc.core.errors import ConfigurationError, RefusalError
from tracing_2pc.core.settings import check_url, read_secret, without_secrets
from tracing_2pc.core.states import Refusal
from tracing_2pc.http.connection import ask, pool_of
from tracing_2pc.outbox.partner import LONGEST_ASKED, PartnerAnswer
from tracing_2pc.outbox.partner_request import (
    MakeRequest,
    ReadStatuses,
    key_of_bulk,
    partner_request_of,
    statuses_of,
)
from tracing_2pc.outbox.quarantine import LONGEST_ANSWER
from tracing_2pc.outbox.requests import Request
from tracing_2pc.tracing.propagation import storable_context
from tracing_2pc.tracing.spans import client_span, set_status, span
from tracing_2pc.wire.contract import NoAnswerError, Silence

_REFUSALS: Final = frozenset({400, 413, 422})
"""What speaks of the record that was sent: malformed, too large, not acceptable.

Every other status speaks of something else (RFC 9110, section 15.5), and the same
record may be taken later: of the sender (401, 402, 403, 407), of the route, which all
records share (404, 405, 406, 410, 414, 415, 421), of headers (411, 412, 417, 428, 431),
of the moment (408, 409, 423, 425, 429). A repeated request gets 409, too, while the
partner is still at work on the first one with its Idempotency-Key.
"""

_CHECK_REFUSALS: Final = _REFUSALS | {409}
"""A check is asked once and carries no key: a conflict is about the records."""

_DEFAULTS: Final = {"Content-Type": "application/json"}

_LONGEST_ANSWER: Final = 1 << 16
_LONGEST_READ: Final = 16 << 20
"""Bytes of an answer that says what became of each record."""


class _Answer(NamedTuple):
    """The partner's answer."""

    status: int  # 0 for nothing
    headers: Mapping[str, str] = MappingProxyType({})
    body: bytes = b""
    failure: str = ""  # of no success; names the origin
    secrets: tuple[str, ...] = ()  # sent, and nobody may see them, if it repeats them

    @property
    def text(self) -> str:
        """The beginning of its body, for a person, without our secrets."""
        text = self.body[: 8 * LONGEST_ANSWER].decode("utf-8", "replace").strip()
        strange = sum(
            c == "\ufffd" or not (c.isprintable() or c.isspace()) for c in text
        )
        if 10 * strange > len(text):
            return f"({len(self.body)} bytes that are no text)"
        return without_secrets(text, self.secrets)[:LONGEST_ANSWER]


class HttpPartner:
    """A partner's HTTP API: each record is a request to it, by default a JSON POST.

    Refused is a request by 400, 413 or 422, which are about the record; 2xx takes it.
    Any other answer is *not now*: an expired token or a wrong address costs time, and
    no request. `Retry-After` is obeyed. No redirects: a redirected POST is a GET.

    `request` makes another request of a record. It is called at prepare, and its result
    is stored: if it raises, the branch votes abort. With `bulk` neighbours of one
    branch whose requests differ in the body only are one request, with their bodies one
    after another. `statuses` reads the status of each from the answer. A bulk that is
    refused as a whole is sent again record by record, one that is not taken in halves.
    Keep `statuses` as long as such records wait: without it 2xx is for all of a bulk. A
    record may be sent again in another bulk, of another key: the partner must recognise
    a record by its content, such as its key and version.

    Args:
        url: that each record is posted to.
        check: URL that is asked at prepare, with `{"records": [...]}` of up to 1000
            records a time. 400, 409, 413 and 422 are a vote to abort; nothing may
            happen there yet.
        headers: sent with each request; no secrets.
        token: reference to a bearer token for the partner, `env:NAME` or `file:PATH`.
        timeout: seconds to connect, and for each read.
        request: makes the request of a record, given as JSON has it, and of its key;
            it depends on nothing else.
        bulk: records in a request, at most; above 1 needs `request` and `statuses`.
        statuses: given the status and body of the partner's answer, returns a status
            for each record of the request, in order; None if the answer's own is for
            all. An exception counts as no answer, or as the answer's own status if that
            is no success.

    Raises:
        ConfigurationError: a URL that cannot be used or holds a password; a bulk that
            is not understood.
    """

    def __init__(
        self,
        url: str,
        *,
        check: str | None = None,
        headers: Mapping[str, str] | None = None,
        token: str | None = None,
        timeout: float = 5.0,
        request: MakeRequest | None = None,
        bulk: int = 1,
        statuses: ReadStatuses | None = None,
    ) -> None:
        if bulk < 1 or (bulk > 1 and (request is None or statuses is None)):
            raise ConfigurationError(
                "bulk: give a number above 0; above 1 also `request`, and `statuses`, "
                "because a success can hold records that were not taken"
            )
        self.request = request
        self.bulk = bulk
        self.longest = timeout
        self._statuses = statuses
        self._url = _checked(url)
        self._check = _checked(check) if check else None
        self._headers = headers or {}
        self._token = token
        self._unasked_until = 0.0  # by this process's own clock

    @property
    def checks(self) -> bool:
        """There is a check call."""
        return self._check is not None

    def check(self, records: Sequence[str]) -> None:
        """Ask whether these records would be taken."""
        assert self._check is not None  # noqa: S101 - callers look at `checks`
        if (left := self._unasked_until - time.monotonic()) > 0:
            detail = (
                f"the partner wants to be asked nothing for {left:.0f} s: ask again"
            )
            raise RefusalError(Refusal.NOT_NOW, detail)
        body = f'{{"records": [{", ".join(records)}]}}'
        answer = self._ask("POST", self._check, "", body, {}, whole=False)
        status, retry_after = answer.status, _retry_after(answer.headers)
        self._unasked_until = time.monotonic() + min(retry_after, LONGEST_ASKED)
        if status in _CHECK_REFUSALS:
            detail = f"the partner refuses these records ({status})"
            raise RefusalError(Refusal.CONFLICT, detail, state="unknown", column="")
        if status // 100 != 2:
            outcome = f"answered {status}" if status else "did not answer"
            detail = f"the partner's check {outcome}: neither yes nor no: ask again"
            raise RefusalError(Refusal.NOT_NOW, detail)

    def send(self, requests: Sequence[Request]) -> list[PartnerAnswer]:
        """Send one request once, of several with their bodies one after another.

        The code of an answer is the HTTP status, 0 for none.
        """
        request, key = requests[0], key_of_bulk(requests)
        try:
            sent, *others = [partner_request_of(request.body) for request in requests]
        except ValueError:
            failure = "not sent: what is stored of it is no request"
            return [PartnerAnswer(0, is_refused=True, why=failure)]  # it never can be
        body = "".join([sent.body, *(other.body for other in others)])
        about = {
            "tpc.transaction.id": str(request.transaction),
            "tpc.application": request.transaction.application,
            "tpc.branch": str(request.branch),
            "messaging.system": "tracing_2pc",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": request.outbox,
            "messaging.message.id": key,
        }
        with span(names.OUTBOX_SEND, carrier=request.carrier, attributes=about) as step:
            headers = {**sent.headers, "Idempotency-Key": key}
            is_read = self._statuses is not None
            answer = self._ask(
                sent.method, self._url, sent.path, body, headers, whole=is_read
            )
            if (status := answer.status) // 100 != 2:
                step.set("error.type", str(status or "no answer"))
        statuses = statuses_of(self._statuses, status, answer.body, len(requests))
        after, failure = _retry_after(answer.headers), answer.failure
        excerpt = "" if all(s // 100 == 2 for s in statuses) else answer.text
        return [
            PartnerAnswer(s, s // 100 == 2, s in _REFUSALS, after, failure, excerpt)
            for s in statuses
        ]

    def _ask(
        self,
        method: str,
        url: str,
        below: str,
        body: str,
        extra: Mapping[str, str],
        *,
        whole: bool,
    ) -> _Answer:
        headers = urllib3.HTTPHeaderDict(_DEFAULTS)
        headers.update(self._headers)  # replaces, whatever the case
        headers.update(extra)
        place = urllib3.util.parse_url(url)
        # A webhook's path is its secret.
        secrets = [s for s in (place.path, place.query) if s and s != "/"]
        if self._token:
            token = read_secret(self._token, "token of the partner")
            headers["Authorization"] = f"Bearer {token}"
            secrets.append(token)
        origin = place._replace(auth=None, path=None, query=None, fragment=None).url
        pool = pool_of(origin, self.longest, os.getpid())
        path = _target(place, below)
        shown = place._replace(path="/REDACTED", query=None, fragment=None)
        about: dict[str, str | int | float | bool] = {
            "http.request.method": method,
            "url.full": shown.url,
            "server.address": pool.host,
            "server.port": pool.port or 0,
        }
        with client_span(method, about) as step:
            headers.update(storable_context())
            most = _LONGEST_READ if whole else _LONGEST_ANSWER
            rest = (body.encode(), headers, self.longest, most)
            try:
                status, answer_headers, answer = ask(
                    pool, method, path, *rest, whole=whole
                )
            except NoAnswerError as error:
                step.set("error.type", error.detail)
                return _Answer(0, failure=_why_silent(error, origin, self.longest))
            set_status(step, status, error=status >= 400)
        failure = "" if status // 100 == 2 else f"{origin} answered {status}"
        return _Answer(status, answer_headers, answer, failure, tuple(secrets))


def _why_silent(error: NoAnswerError, origin: str, timeout: float) -> str:
    """Explain why no answer came; of the address only the origin is named."""
    if error.silence is Silence.NOT_SENT:
        return f"nothing listens at {origin}"
    return f"no whole answer from {origin} within {timeout:.3g} s ({error.detail})"


def _retry_after(headers: Mapping[str, str]) -> float:
    """Return the seconds of `Retry-After`, or until its date; 0 without one."""
    text = headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdecimal():
        return float(text)  # infinite, if it has so many digits
    try:
        return email.utils.parsedate_to_datetime(text).timestamp() - time.time()
    except (ArithmeticError, TypeError, ValueError):
        return 0.0


def _target(place: urllib3.util.Url, below: str) -> str:
    """Return the request target; a path that was made of data is not parsed.

    A parser would resolve `..` in it.
    """
    if not below:
        return place.request_uri
    path = place.path or "/"  # a base URL has no query
    return (path.rstrip("/") if below.startswith("/") else path) + below


def _checked(url: str) -> str:
    try:
        url = check_url(url)
    except ValueError as error:
        raise ConfigurationError(f"partner: {error}") from None
    if not url.startswith(("http://", "https://")):
        raise ConfigurationError("partner: expected http://host:port or https://…")
    return url
