"""The partner's HTTP API: one request, one outcome, nothing guessed.

A partner is an outsider: it gets the trace context, and never the user's baggage.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

import urllib3

from tracing_2pc import names
from tracing_2pc.errors import ConfigurationError
from tracing_2pc.participant.problems import Problem, unavailable
from tracing_2pc.participant.resources.queue import Request
from tracing_2pc.settings import check_url, reveal
from tracing_2pc.telemetry.propagation import at_rest
from tracing_2pc.telemetry.spans import client_span, span

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
_ENOUGH: Final = 1 << 16


class Partner:
    """Where an outbox's requests go. No redirects: a redirected POST is a GET.

    Args:
        url: each record is posted there.
        check: asked at prepare, or None.
        headers: sent with each request.
        token: reference to a bearer token, or None.
        timeout: seconds to connect, and for each read.
    """

    def __init__(
        self,
        url: str,
        check: str | None,
        headers: Mapping[str, str],
        token: str | None,
        timeout: float,
    ) -> None:
        self._url = _checked(url)
        self._check = _checked(check) if check else None
        self._headers = {"Content-Type": "application/json", **headers}
        self._token = token
        self._timeout = timeout
        self._pool = urllib3.PoolManager(
            timeout=urllib3.Timeout(connect=timeout, read=timeout), retries=False
        )

    @property
    def checks(self) -> bool:
        """There is a check call."""
        return self._check is not None

    def check(self, records: Sequence[str]) -> None:
        """Ask whether these records would be taken.

        Raises:
            Problem: 409, they would not; 503, no answer.
        """
        assert self._check is not None  # noqa: S101 - callers look at `checks`
        status = self._post(self._check, f'{{"records": [{", ".join(records)}]}}', {})
        if status in _CHECK_REFUSALS:
            raise Problem(
                409,
                f"the partner refuses these records ({status})",
                fields={"state": "unknown"},
            )
        if status // 100 != 2:
            answer = f"answered {status}" if status else "did not answer"
            raise unavailable(f"the partner's check {answer}: neither yes nor no")

    def send(self, request: Request) -> int:
        """Send a request once; returns the HTTP status, 0 for no answer."""
        about = {
            "tpc.transaction.id": str(request.transaction),
            "tpc.application": request.transaction.application,
            "tpc.branch": str(request.branch),
        }
        with span(names.OUTBOX_SEND, carrier=request.carrier, attributes=about):
            key = {"Idempotency-Key": request.key}
            return self._post(self._url, request.body, key)

    def _post(self, url: str, body: str, extra: Mapping[str, str]) -> int:
        headers = {**self._headers, **extra}
        if self._token:
            token = reveal(self._token, "token of the partner")
            headers["Authorization"] = f"Bearer {token}"
        address = urlsplit(url)
        about: dict[str, str | int | float | bool] = {
            "http.request.method": "POST",
            "server.address": address.hostname or "",
            "server.port": address.port or (443 if address.scheme == "https" else 80),
        }
        with client_span("POST", about) as step:
            headers.update(at_rest())
            try:
                response = self._pool.request(
                    "POST",
                    url,
                    body=body.encode(),
                    headers=headers,
                    redirect=False,
                    preload_content=False,
                )
                _finish(response, time.monotonic() + self._timeout)
            except (urllib3.exceptions.HTTPError, OSError) as error:
                step.set("error.type", type(error).__name__)
                return 0
            step.set("http.response.status_code", response.status)
            return int(response.status)


def _finish(response: urllib3.BaseHTTPResponse, until: float) -> None:
    """Keep the connection for the next request, unless the body is long or slow."""
    left = _ENOUGH
    while left > 0 and time.monotonic() < until:
        if not (piece := response.read1(left)):
            response.release_conn()
            return
        left -= len(piece)
    response.close()


def is_refusal(status: int) -> bool:
    """Say whether a status is a definite no to this record."""
    return status in _REFUSALS


def _checked(url: str) -> str:
    try:
        return check_url(url)
    except ValueError as error:
        raise ConfigurationError(f"partner: {error}") from None
