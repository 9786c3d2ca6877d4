"""The exact forms of requests: read strictly, bounded, before anything is done."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from flask import Request

from tracing_2pc.model import BranchId, TransactionId, check_application
from tracing_2pc.participant.answers import Named
from tracing_2pc.participant.body import Body
from tracing_2pc.participant.json_lines import strict_json
from tracing_2pc.participant.problems import Problem
from tracing_2pc.settings import check_name
from tracing_2pc.states import BranchState, Decision
from tracing_2pc.transports import wire

MAX_ROWS: Final = 2**53 - 1
"""Beyond it JSON numbers are not exact everywhere."""

MAX_BRANCHES: Final = 50_000
MAX_REASON: Final = 1_000
MAX_PAGE: Final = 1_000
_PAGE: Final = 100
_LONGEST_LENGTH: Final = 18

_SMALLER_BATCH: Final = "write with more partitions, or raise max_prepare_bytes here"
_FEWER_BRANCHES: Final = "a commit names one branch per partition: write with fewer"
_NOTHING_MORE: Final = "send only the fields that the contract names"

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """A commit, an abort or a resolution, as it was asked for."""

    transaction: TransactionId
    participant: str
    watermark: int | None = None
    named: tuple[Named, ...] = ()
    branch: BranchId | None = None
    digest: str | None = None
    outcome: Decision | None = None
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Query:
    """Which page of the list is wanted."""

    application: str | None
    state: str | None
    after: int
    limit: int


def check_version(request: Request) -> None:
    """Refuse another version of the contract, and headers that are given twice."""
    for name, value in request.headers.items():
        if name.lower().startswith("tpc-") and "," in value:
            raise Problem(400, f"{name}: give this header once")
    version = request.headers.get(wire.VERSION_HEADER)
    if version is None and request.method == "POST":
        raise Problem(400, f"{wire.VERSION_HEADER} is missing: send {wire.VERSION}")
    if version not in {None, wire.VERSION}:
        raise Problem(400, f"{wire.VERSION_HEADER}: this participant speaks version 1")


def check_body(request: Request, types: Iterable[str], limit: int, hint: str) -> int:
    """Return the length of a body of an expected type; none of it is read yet.

    Args:
        request: whose headers are read.
        types: that are expected.
        limit: bytes; more is refused.
        hint: what makes a body smaller.
    """
    if request.mimetype not in types:
        raise Problem(415, f"Content-Type: send {' or '.join(types)}")
    chunked = "chunked" in request.headers.get("Transfer-Encoding", "").lower()
    if chunked or not (text := request.headers.get("Content-Length", "")):
        raise Problem(411, "Content-Length is missing: chunked bodies are not read")
    if not (text.isascii() and text.isdecimal()):
        raise Problem(400, "Content-Length: expected a whole number")
    if len(text) > _LONGEST_LENGTH or int(text) > limit:
        detail = f"the body is larger than {limit} bytes: {hint}"
        raise Problem(413, detail, headers={"Connection": "close"})
    return int(text)


def read_participant(request: Request) -> str:
    """Read whom a request is meant for."""
    return _header(request, wire.PARTICIPANT_HEADER, check_name)


def read_participant_if_given(request: Request) -> str | None:
    """Read whom a look-up is meant for; None if it does not say."""
    given = wire.PARTICIPANT_HEADER in request.headers
    return read_participant(request) if given else None


def read_prepare(
    request: Request, limit: int
) -> tuple[TransactionId, str, Named, Body]:
    """Read the headers of a prepare: the transaction, whom it is meant for, what."""
    length = check_body(request, (wire.ARROW, wire.NDJSON), limit, _SMALLER_BATCH)
    transaction = _header(request, wire.TRANSACTION_HEADER, TransactionId.parse)
    with about(transaction):
        participant = read_participant(request)
        named = Named(
            _header(request, wire.BRANCH_HEADER, BranchId.parse),
            _header(request, wire.ROWS_HEADER, _rows),
            _header(request, wire.DIGEST_HEADER, wire.check_digest),
        )
    body = Body(request.stream, length, request.mimetype, named.digest)
    return transaction, participant, named, body


def read_commit(request: Request) -> Order:
    """Read the body of a commit."""
    item, transaction = _control(request, {"branches", "watermark"})
    with about(transaction):
        branches = item.get("branches")
        if not isinstance(branches, list):
            raise Problem(400, "branches: expected a list")
        if len(branches) > MAX_BRANCHES:
            raise Problem(400, f"branches: more than {MAX_BRANCHES}; {_FEWER_BRANCHES}")
        named = tuple(_named(branch) for branch in branches)
        if len({n.branch for n in named}) != len(named):
            raise Problem(400, "branches: a branch is named twice")
        watermark = _watermark(item, transaction)
        return Order(transaction, read_participant(request), watermark, named)


def read_abort(request: Request) -> Order:
    """Read the body of an abort: of a transaction, or of one branch by its task.

    Who may abort one branch may not decide: only a whole one carries a watermark.
    """
    item, transaction = _control(request, {"branch", "digest", "watermark"})
    with about(transaction):
        participant = read_participant(request)
        if "branch" not in item:
            if "digest" in item:
                raise Problem(400, "digest: give it with the branch that it is of")
            return Order(transaction, participant, _watermark(item, transaction))
        if "watermark" in item:
            raise Problem(400, "watermark: only with the abort of a whole transaction")
        branch = _field("branch", item["branch"], BranchId.parse)
        if "digest" not in item:
            return Order(transaction, participant, branch=branch)
        digest = _field("digest", item["digest"], wire.check_digest)
        return Order(transaction, participant, branch=branch, digest=digest)


def read_resolve(request: Request) -> Order:
    """Read the body of a resolution by hand."""
    item, transaction = _control(request, {"outcome", "reason"})
    with about(transaction):
        reason = item.get("reason")
        if (
            not isinstance(reason, str)
            or not 0 < len(reason.strip()) <= MAX_REASON
            or not reason.strip().isprintable()
        ):
            detail = f"reason: say why, in one line of up to {MAX_REASON} characters"
            raise Problem(400, detail)
        outcome = _field("outcome", item.get("outcome"), Decision)
        participant, because = read_participant(request), reason.strip()
        return Order(transaction, participant, outcome=outcome, reason=because)


def read_query(request: Request) -> Query:
    """Read the query of a list."""
    allowed = {"application", "state", "after", "limit"}
    given = request.args
    if unknown := set(given) - allowed:
        raise Problem(400, f"no parameter {sorted(unknown)[0][:60]!r}")
    if any(len(given.getlist(name)) > 1 for name in given):
        raise Problem(400, "give each parameter once")
    state = given.get("state")
    if state not in {None, str(BranchState.WRITING), str(BranchState.PREPARED)}:
        raise Problem(400, "state: expected writing or prepared")
    application = given.get("application")
    return Query(
        None
        if application is None
        else _field("application", application, check_application),
        state,
        _field("after", given["after"], _read_cursor) if "after" in given else 0,
        _field("limit", given["limit"], _limit) if "limit" in given else _PAGE,
    )


def read_id(text: str) -> TransactionId:
    """Read a transaction id from a path."""
    return _field("transaction_id", text, TransactionId.parse)


def write_cursor(tag: int | None) -> str | None:
    """Return where the next page begins."""
    return None if tag is None else f"t{tag}"


class about:  # noqa: N801 - reads as a word of the with statement
    """Name the transaction in a problem that is raised once its id is read."""

    def __init__(self, transaction: TransactionId) -> None:
        self._transaction = transaction

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        if isinstance(error, Problem):
            error.fields.setdefault("transaction_id", str(self._transaction))


def _read_cursor(text: str) -> int:
    if text[:1] != "t":
        raise ValueError("give what `next` said")
    return _count(text[1:], 18)


def _control(request: Request, names: set[str]) -> tuple[dict[str, Any], TransactionId]:
    hint = _FEWER_BRANCHES if "branches" in names else _NOTHING_MORE
    length = check_body(request, (wire.JSON,), wire.MAX_CONTROL_BYTES, hint)
    body = Body(request.stream, length, request.mimetype, "").readall()
    try:
        item = strict_json(body or b"")
    except ValueError:
        detail = "body: not strict JSON; no key twice, no NaN, no deep nesting"
        raise Problem(400, detail) from None
    if not isinstance(item, dict):
        raise Problem(400, "body: expected a JSON object")
    if "transaction_id" not in item:
        raise Problem(400, "transaction_id is missing")
    transaction = _field("transaction_id", item["transaction_id"], TransactionId.parse)
    if unknown := item.keys() - names - {"transaction_id"}:
        with about(transaction):
            raise Problem(400, f"no field {sorted(unknown)[0][:60]!r} here")
    return item, transaction


def _named(item: Any) -> Named:
    if not isinstance(item, dict) or item.keys() != {"branch", "rows", "digest"}:
        raise Problem(400, "branches: expected objects of branch, rows and digest")
    rows = item["rows"]
    if not _is_int(rows) or not 0 <= rows <= MAX_ROWS:
        raise Problem(400, f"rows: expected a whole number up to {MAX_ROWS}")
    return Named(
        _field("branch", item["branch"], BranchId.parse),
        rows,
        _field("digest", item["digest"], wire.check_digest),
    )


def _watermark(item: dict[str, Any], transaction: TransactionId) -> int | None:
    watermark = item.get("watermark")
    if watermark is None:
        return None
    if not _is_int(watermark) or not 0 <= watermark < transaction.batch:
        raise Problem(400, f"watermark: expected 0 to {transaction.batch - 1}, or null")
    return int(watermark)


def _header(request: Request, name: str, read: Callable[[str], T]) -> T:
    value = request.headers.get(name)
    if value is None:
        raise Problem(400, f"{name} is missing")
    return _field(name, value, read)


def _field(name: str, value: Any, read: Callable[[str], T]) -> T:
    if not isinstance(value, str):
        raise Problem(400, f"{name}: expected text")
    try:
        return read(value)
    except ValueError as error:
        raise Problem(400, f"{name}: {error}"[:300]) from None


def _count(text: str, digits: int = 16) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= digits) or (
        text[0] == "0" and text != "0"
    ):
        raise ValueError("expected a whole number without leading zeros")
    return int(text)


def _rows(text: str) -> int:
    if _count(text) > MAX_ROWS:
        raise ValueError(f"expected a whole number up to {MAX_ROWS}")
    return int(text)


def _limit(text: str) -> int:
    if not 1 <= _count(text) <= MAX_PAGE:
        raise ValueError(f"expected 1 to {MAX_PAGE}")
    return int(text)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
