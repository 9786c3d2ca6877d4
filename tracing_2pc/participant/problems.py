"""Problem documents (RFC 9457): what every refusal looks like."""

from __future__ import annotations

import http
import json
from collections.abc import Mapping
from typing import Any

from flask import Response

from tracing_2pc.transports import wire


class Problem(Exception):  # noqa: N818 - RFC 9457's word
    """A refusal, with what to change. Never SQL, a path, a record or a stack trace.

    Args:
        status: HTTP status.
        detail: what is wrong and what to do.
        fields: members beside the standard ones.
        headers: of the response.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        fields: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.fields = dict(fields or {})
        self.headers = dict(headers or {})

    def response(self) -> Response:
        """Return it as an HTTP answer."""
        document = {
            "type": "about:blank",
            "title": http.HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            **self.fields,
        }
        return Response(
            json.dumps(document), self.status, self.headers, mimetype=wire.PROBLEM
        )


def unavailable(detail: str = "the participant's database did not answer") -> Problem:
    """Return "not now": neither a yes nor a no."""
    return Problem(503, f"{detail}: ask again", headers={"Retry-After": "1"})
