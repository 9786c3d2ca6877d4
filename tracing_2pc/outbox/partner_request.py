"""A record as a request of the user's own making: computed at prepare, stored, sent."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

from tracing_2pc.core.errors import RefusalError
from tracing_2pc.core.model import RequestKey
from tracing_2pc.core.states import Refusal
from tracing_2pc.outbox.requests import Request

_METHOD: Final = re.compile("[A-Z]{1,20}")
_HEADER: Final = re.compile("[A-Za-z0-9-]{1,100}")
# RFC 3986, without a fragment: whoever gets anything else rewrites it.
_PATH: Final = re.compile(r"([/?]([A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*)?")

_OWN_HEADERS: Final = frozenset(
    {
        "idempotency-key",
        "content-length",
        "transfer-encoding",
        "host",
        "connection",
        "authorization",
        "traceparent",
        "tracestate",
    }
)
"""The outbox and its transport make these."""

LONGEST_BULK: Final = 8 << 20
"""Characters of several records' bodies that are sent in one request, at most."""

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class PartnerRequest:
    """The request to a partner for one record.

    Args:
        method: as in `PUT`.
        path: is appended to the partner's URL as it is; percent-encoded, as by
            `urllib.parse.quote`. Refused are paths that may name something else: `#`, a
            segment `.` or `..` in any spelling, and an empty one, but for a slash at
            the end where nothing is deleted.
        body: text, sent as UTF-8.
        headers: before those of the outbox; no secrets, because they are stored.
            `Idempotency-Key`, `Authorization`, `Host`, those of the trace and of how a
            body is sent are not the record's.

    Raises:
        ValueError: it cannot be sent as it is.
    """

    method: str
    path: str = ""
    body: str = ""
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (_METHOD.fullmatch(self.method) and _PATH.fullmatch(self.path)):
            raise ValueError("method or path cannot be sent: percent-encode the path")
        _check_segments(self.method, self.path)
        if not isinstance(self.body, str):
            raise ValueError("body: expected text")
        self.body.encode()  # a lone surrogate is no text
        for name, value in self.headers.items():
            if not (_HEADER.fullmatch(name) and _is_sendable(value)):
                raise ValueError("headers: one cannot be sent")
            if name.lower() in _OWN_HEADERS:
                raise ValueError(f"headers: {name} is the outbox's")


def _check_segments(method: str, path: str) -> None:
    segments = [unquote(part) for part in path.partition("?")[0].split("/")[1:]]
    if "." in segments or ".." in segments:
        raise ValueError("path: a segment . or .. names something else")
    if method != "DELETE" and len(segments) > 1 and not segments[-1]:
        segments.pop()  # a slash at the end
    if "" in segments:
        raise ValueError("path: a segment is empty")


def _is_sendable(value: object) -> bool:
    return isinstance(value, str) and value.isascii() and value.isprintable()


MakeRequest: TypeAlias = Callable[[Mapping[str, Any], RequestKey], PartnerRequest]
ReadStatuses: TypeAlias = Callable[[int, bytes], Sequence[int] | None]


def made_by(make: MakeRequest, record: str, key: RequestKey) -> str:
    """Return the text to store for a record, whose request is made here and now.

    A record is stored as a JSON object, a request that was made as a JSON array: so
    each row describes itself, however the outbox is configured later.

    Raises:
        RefusalError: conflict: it cannot be made, so the branch votes abort.
    """
    try:
        made = make(json.loads(record), key)
        parts = (made.method, made.path, dict(made.headers), made.body)
        return json.dumps(parts)
    except Exception as error:  # noqa: BLE001 - the user's code votes no by raising
        # Its message may hold the record.
        kind = type(error).__name__
        logger.warning("no request could be made: request=%s: %s", key, kind)
        detail = f"no request can be made from record {key.row} of this branch: {kind}"
        raise RefusalError(Refusal.CONFLICT, detail, state="unknown") from None


def partner_request_of(stored: str) -> PartnerRequest:
    """Return the request that a row is; `ValueError`: it cannot be sent."""
    if not stored.startswith("["):
        return PartnerRequest("POST", "", stored)
    method, path, headers, body, *_ = json.loads(stored)
    return PartnerRequest(method, path, body, headers)


def in_bulks(requests: Iterable[Request], most: int) -> Iterator[list[Request]]:
    """Put together neighbours of one branch that differ in the body only."""

    def common(request: Request) -> Any:
        if not request.body.startswith("["):
            return request.key
        method, path, headers, *_ = json.loads(request.body)
        return (method, path, headers)

    for _, alike in itertools.groupby(requests, common):
        bulk: list[Request] = []
        length = 0
        for request in alike:
            length += len(request.body)
            if bulk and (len(bulk) >= most or length > LONGEST_BULK):
                yield bulk
                bulk, length = [], len(request.body)
            bulk.append(request)
        yield bulk


def key_of_bulk(requests: Sequence[Request]) -> str:
    """Return the idempotency key: that of the record, or of exactly these records."""
    if len(requests) == 1:
        return requests[0].key
    keys = "\n".join(request.key for request in requests)
    return f"{requests[0].key}-{hashlib.sha256(keys.encode()).hexdigest()[:32]}"


def statuses_of(
    read: ReadStatuses | None, status: int, body: bytes, count: int
) -> list[int]:
    """Return a status for each record, or one for all of them together.

    An answer of success that cannot be read counts as none: 0.
    """
    if read is None or not status:
        return [status]
    try:
        statuses = read(status, body)
        if statuses is None:
            return [status]
        if len(statuses) == count and all(isinstance(s, int) for s in statuses):
            return list(statuses)
        trouble = f"statuses for {len(statuses)} records of {count}"
    except Exception as error:  # noqa: BLE001 - the user's code, over any answer
        trouble = type(error).__name__
    logger.warning(
        "outbox: an answer was not understood: status=%d: %s", status, trouble
    )
    return [0 if status // 100 == 2 else status]
