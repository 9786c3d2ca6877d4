"""The partner's HTTP API: one request, one outcome, nothing guessed.

A partner is an outsider: it gets the trace context, and never the user's baggage.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

import urllib3

from tracing_2pc.core import names
from tracing_2pc.core.errors import ConfigurationError, RefusalError
from tracing_2pc.core.settings import check_url, read_secret
from tracing_2pc.core.states import Refusal
from tracing_2pc.http.connection import ask, pool_of
from tracing_2pc.participant.resources.partner import PartnerAnswer
from tracing_2pc.participant.resources.queue import Request
from tracing_2pc.tracing.propagation import at_rest
from tracing_2pc.tracing.spans import client_span, set_status, span

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

_LONGEST_ANSWER: Final = 1 << 16


class HttpPartner:
    """Where an outbox's requests go. No redirects: a redirected POST is a GET.

    `open_partner` describes the arguments.
    """

    def __init__(
        self,
        url: str,
        check: str | None,
        headers: Mapping[str, str],
        token: str | None,
        timeout: float,
        name: str = "outbox",
    ) -> None:
        self._name = name
        self._url = _checked(url)
        self._check = _checked(check) if check else None
        self._headers = {"Content-Type": "application/json", **headers}
        self._token = token
        self._timeout = timeout

    @property
    def checks(self) -> bool:
        """There is a check call."""
        return self._check is not None

    def check(self, records: Sequence[str]) -> None:
        """Ask whether these records would be taken."""
        assert self._check is not None  # noqa: S101 - callers look at `checks`
        body = f'{{"records": [{", ".join(records)}]}}'
        status = self._post(self._check, body, {})
        if status in _CHECK_REFUSALS:
            detail = f"the partner refuses these records ({status})"
            raise RefusalError(Refusal.CONFLICT, detail, state="unknown")
        if status // 100 != 2:
            answer = f"answered {status}" if status else "did not answer"
            detail = f"the partner's check {answer}: neither yes nor no: ask again"
            raise RefusalError(Refusal.NOT_NOW, detail)

    def send(self, request: Request) -> PartnerAnswer:
        """Send a request once; the code is the HTTP status, 0 for no answer."""
        about = {
            "tpc.transaction.id": str(request.transaction),
            "tpc.application": request.transaction.application,
            "tpc.branch": str(request.branch),
            "messaging.system": "tracing_2pc",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": self._name,
            "messaging.message.id": request.key,
        }
        with span(names.OUTBOX_SEND, carrier=request.carrier, attributes=about) as step:
            key = {"Idempotency-Key": request.key}
            status = self._post(self._url, request.body, key)
            if status // 100 != 2:
                step.set("error.type", str(status or "no answer"))
        return PartnerAnswer(status, status // 100 == 2, status in _REFUSALS)

    def _post(self, url: str, body: str, extra: Mapping[str, str]) -> int:
        headers = {**self._headers, **extra}
        if self._token:
            token = read_secret(self._token, "token of the partner")
            headers["Authorization"] = f"Bearer {token}"
        pool = pool_of(url, self._timeout, os.getpid())
        place = urllib3.util.parse_url(url)
        path = place.request_uri
        # A webhook's path is its secret.
        shown = place._replace(path="/REDACTED", query=None, fragment=None)
        about: dict[str, str | int | float | bool] = {
            "http.request.method": "POST",
            "url.full": shown.url,
            "server.address": pool.host,
            "server.port": pool.port or 0,
        }
        with client_span("POST", about) as step:
            headers.update(at_rest())
            rest = (body.encode(), headers, self._timeout, _LONGEST_ANSWER)
            try:
                status, _, _ = ask(pool, "POST", path, *rest, whole=False)
            except (urllib3.exceptions.HTTPError, OSError) as error:
                step.set("error.type", type(error).__name__)
                return 0
            set_status(step, status, error=status >= 400)
        return status


def _checked(url: str) -> str:
    try:
        url = check_url(url)
    except ValueError as error:
        raise ConfigurationError(f"partner: {error}") from None
    if not url.startswith(("http://", "https://")):
        raise ConfigurationError("partner: expected http://host:port or https://…")
    return url
