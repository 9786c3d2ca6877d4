"""The exact forms of requests: read strictly, bounded, before anything is done.

A transaction's id is kept in `flask.g` as soon as it is read: a refusal names it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from flask import Request, g

from tracing_2pc.core import content
from tracing_2pc.core.model import (
    BranchId,
    RequestKey,
    TransactionId,
    check_application,
    check_journal,
)
from tracing_2pc.core.settings import check_name
from tracing_2pc.core.states import BranchState, Decision, RequestState
from tracing_2pc.participant.answers import BranchRef
from tracing_2pc.participant.body import Body
from tracing_2pc.participant.engine import Order, Query
from tracing_2pc.participant.json_lines import strict_json
from tracing_2pc.participant.requests import RequestOrder, RequestQuery
from tracing_2pc.wire import contract
from tracing_2pc.wire.error_responses import Problem

MAX_ROWS: Final = 2**53 - 1  # beyond it JSON numbers are not exact everywhere

MAX_BRANCHES: Final = 50_000
"""The contract's, for any coordinator. Ours names fewer: `core.model.MAX_BRANCHES`."""

MOST_NAMED: Final = 5_000
"""Rejected rows of a branch that one answer names, at most: one of 1 MiB has them."""

MAX_REASON: Final = 1_000
MAX_PAGE: Final = 1_000
_PAGE: Final = 100
_LONGEST_LENGTH: Final = 18
_PLACE: Final = re.compile(r"([0-9]{1,12}\.[0-9]{1,17})~(.+)")

_SMALLER_BATCH: Final = "write with more partitions, or raise max_prepare_bytes here"
_FEWER_BRANCHES: Final = "a commit names one branch per partition: write with fewer"
_NOTHING_MORE: Final = "send only the fields that the contract names"

T = TypeVar("T")


def check_version(request: Request) -> None:
    """Refuse another version of the contract, and headers that are given twice."""
    for name, value in request.headers.items():
        if name.lower().startswith("tpc-") and "," in value:
            raise Problem(400, f"{name}: give this header once")
    name, version = contract.VERSION_HEADER, contract.VERSION
    client_version = request.headers.get(name)
    if client_version is None and request.method == "POST":
        raise Problem(400, f"{name} is missing: send {version}")
    if client_version not in {None, version}:
        raise Problem(400, f"{name}: this participant speaks version {version}")


def read_prepare(
    request: Request, limit: int
) -> tuple[TransactionId, str, BranchRef, Body]:
    """Read the headers of a prepare: transaction, participant, branch; and its body."""
    length = _body_length(
        request, (content.ARROW, content.NDJSON), limit, _SMALLER_BATCH
    )
    transaction = _header(request, contract.TRANSACTION_HEADER, _transaction)
    participant = _participant(request)
    ref = BranchRef(
        _header(request, contract.BRANCH_HEADER, BranchId.parse),
        _header(request, contract.ROWS_HEADER, _rows),
        _header(request, contract.DIGEST_HEADER, content.check_digest),
    )
    body = Body(request.stream, length, request.mimetype, ref.digest)
    return transaction, participant, ref, body


def read_commit(request: Request) -> Order:
    """Read the body of a commit; ignore the additions of a newer release.

    Unless `requires` names one: it then changes the request.
    """
    names = {"branches", "forgotten_through"}
    item, transaction = _control(request, names, ignores=True)
    branches = item.get("branches")
    if not isinstance(branches, list):
        raise Problem(400, "branches: expected a list")
    if len(branches) > MAX_BRANCHES:
        raise Problem(400, f"branches: more than {MAX_BRANCHES}; {_FEWER_BRANCHES}")
    refs = tuple(map(_ref, branches))
    if len({ref.branch for ref in refs}) != len(refs):
        raise Problem(400, "branches: a branch is named twice")
    forgotten_through = _forgotten_through(item, transaction)
    return Order(
        transaction,
        _participant(request),
        forgotten_through,
        refs,
        journal=read_journal(request),
    )


def read_abort(request: Request) -> Order:
    """Read the body of an abort: of a transaction, or of one branch by its task.

    A caller who may abort a branch may not decide: only the abort of a transaction
    carries forgotten_through.
    """
    item, transaction = _control(request, {"branch", "digest", "forgotten_through"})
    participant, journal = _participant(request), read_journal(request)
    if "branch" not in item:
        if "digest" in item:
            raise Problem(400, "digest: give it with the branch that it is of")
        through = _forgotten_through(item, transaction)
        return Order(transaction, participant, through, journal=journal)
    if "forgotten_through" in item:
        raise Problem(
            400, "forgotten_through: only with the abort of a whole transaction"
        )
    branch, digest = _field("branch", item["branch"], BranchId.parse), None
    if "digest" in item:
        digest = _field("digest", item["digest"], content.check_digest)
    return Order(
        transaction, participant, branch=branch, digest=digest, journal=journal
    )


def read_resolve(request: Request) -> tuple[Order, Decision]:
    """Read the body of a resolution by hand, and the outcome that it asks for."""
    item, transaction = _control(request, {"outcome", "reason"})
    reason = _line(item, "reason", "say why")
    outcome = _field("outcome", item.get("outcome"), Decision)
    participant, journal = _participant(request), read_journal(request)
    return Order(transaction, participant, reason=reason, journal=journal), outcome


def read_request_order(request: Request, *, asks_why: bool) -> RequestOrder:
    """Read the body of an order about one request in quarantine."""
    item = _object(request, _NOTHING_MORE)
    if unknown := item.keys() - {"key", "who", "reason"}:
        raise _unknown_field(unknown)
    key = _field("key", item.get("key"), RequestKey.parse)
    g.tpc_transaction = str(key.transaction)
    who = _line(item, "who", "say who wants it")
    asks_why = asks_why or bool(str(item.get("reason", "")).strip())
    reason = _line(item, "reason", "say why") if asks_why else ""
    return RequestOrder(key, _participant(request), who, reason)


def _line(item: dict[str, Any], name: str, wish: str) -> str:
    text = item.get(name)
    text = text.strip() if isinstance(text, str) else ""
    if not 0 < len(text) <= MAX_REASON or not text.isprintable():
        detail = f"{name}: {wish}, in one line of up to {MAX_REASON} characters"
        raise Problem(400, detail)
    return text


def read_show(request: Request, text: str) -> tuple[TransactionId, str | None]:
    """Read the id in the path of a look-up, and the participant if it names one."""
    transaction = _field("transaction_id", text, _transaction)
    is_named = contract.PARTICIPANT_HEADER in request.headers
    return transaction, _participant(request) if is_named else None


def read_query(request: Request) -> Query:
    """Read the query of a list."""
    query = _parameters(request, {"application", "state", "after", "limit"})
    if query.get("state", BranchState.PREPARED) != BranchState.PREPARED:
        raise Problem(400, "state: expected prepared, which all that is listed is")
    return Query(
        _given(query, "application", check_application, None),
        _given(query, "after", _read_cursor, 0),
        _given(query, "limit", _limit, _PAGE),
    )


def read_request_query(request: Request) -> RequestQuery:
    """Read the query of a list of requests in quarantine."""
    query = _parameters(request, {"application", "key", "state", "after", "limit"})
    states = {str(s): s for s in (RequestState.QUARANTINED, RequestState.DROPPED)}
    if (state := query.get("state", "quarantined")) not in states:
        raise Problem(400, "state: expected quarantined or dropped")
    return RequestQuery(
        _given(query, "application", check_application, None),
        _given(query, "key", RequestKey.parse, None),
        states[state],
        _given(query, "after", _read_place, (-1.0, "")),
        _given(query, "limit", _limit, _PAGE),
    )


def _given(
    query: Mapping[str, str], name: str, read: Callable[[str], T], default: T
) -> T:
    return _field(name, query[name], read) if name in query else default


def write_request_cursor(place: tuple[float, str] | None) -> str | None:
    """Return where the next page of a quarantine begins."""
    return None if place is None else f"{place[0]!r}~{place[1]}"


def _read_place(text: str) -> tuple[float, str]:
    if not (match := _PLACE.fullmatch(text)):
        raise ValueError("give what `next` said")
    return float(match[1]), str(RequestKey.parse(match[2]))


def _parameters(request: Request, names: set[str]) -> Mapping[str, str]:
    """Return the parameters of a list, each given once."""
    try:
        query = request.args
    except UnicodeDecodeError:
        raise Problem(400, "query: expected UTF-8") from None
    if unknown := set(query) - names:
        raise Problem(400, f"no parameter {sorted(unknown)[0][:60]!r}")
    if any(len(query.getlist(name)) > 1 for name in query):
        raise Problem(400, "give each parameter once")
    return query


def write_cursor(tag: int | None) -> str | None:
    """Return where the next page begins."""
    return None if tag is None else f"t{tag}"


def _read_cursor(text: str) -> int:
    if text[:1] != "t":
        raise ValueError("give what `next` said")
    return _count(text[1:], 18)


def check_coding(request: Request) -> None:
    """Refuse a body that is compressed: 415."""
    coding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if coding not in {"", "identity"}:
        raise Problem(415, "Content-Encoding: send the body as it is, not compressed")


def _body_length(request: Request, types: Iterable[str], limit: int, hint: str) -> int:
    """Return the length of a body of an expected type; none of it is read yet."""
    if request.mimetype not in types:
        raise Problem(415, f"Content-Type: send {' or '.join(types)}")
    check_coding(request)
    chunked = "chunked" in request.headers.get("Transfer-Encoding", "").lower()
    if chunked or not (text := request.headers.get("Content-Length", "")):
        raise Problem(411, "Content-Length is missing: chunked bodies are not read")
    if not (text.isascii() and text.isdecimal()):
        raise Problem(400, "Content-Length: expected a whole number")
    if len(text) > _LONGEST_LENGTH or int(text) > limit:
        detail = f"the body is larger than {limit} bytes: {hint}"
        raise Problem(413, detail, headers={"Connection": "close"})
    return int(text)


def _control(
    request: Request, names: set[str], *, ignores: bool = False
) -> tuple[dict[str, Any], TransactionId]:
    item = _object(request, _FEWER_BRANCHES if "branches" in names else _NOTHING_MORE)
    if "transaction_id" not in item:
        raise Problem(400, "transaction_id is missing")
    transaction = _field("transaction_id", item["transaction_id"], _transaction)
    required = item.get("requires", []) if ignores else [*item]
    if not (isinstance(required, list) and all(isinstance(n, str) for n in required)):
        raise Problem(400, "requires: expected names of fields")
    if unknown := {*required} - names - {"transaction_id"}:
        raise _unknown_field(unknown)
    return item, transaction


def _unknown_field(names: Iterable[str]) -> Problem:
    name = min(names)[:60]
    return Problem(400, f"no field {name!r} here: mend it, or upgrade this service")


def _object(request: Request, hint: str) -> dict[str, Any]:
    """Read a body that is a JSON object."""
    length = _body_length(request, (contract.JSON,), contract.MAX_CONTROL_BYTES, hint)
    body = Body(request.stream, length, request.mimetype, "").readall()
    try:
        item = strict_json(body or b"")
    except ValueError:
        detail = "body: not strict JSON; no key twice, no NaN, no deep nesting"
        raise Problem(400, detail) from None
    if not isinstance(item, dict):
        raise Problem(400, "body: expected a JSON object")
    return item


def _ref(item: Any) -> BranchRef:
    if not isinstance(item, dict) or not item.keys() >= {"branch", "rows", "digest"}:
        raise Problem(400, "branches: expected objects of branch, rows and digest")
    rows = item["rows"]
    if not _is_int(rows) or not 0 <= rows <= MAX_ROWS:
        raise Problem(400, f"rows: expected a whole number up to {MAX_ROWS}")
    return BranchRef(
        _field("branch", item["branch"], BranchId.parse),
        rows,
        _field("digest", item["digest"], content.check_digest),
    )


def _forgotten_through(item: dict[str, Any], transaction: TransactionId) -> int | None:
    batch = item.get("forgotten_through")
    if batch is not None and not (_is_int(batch) and 0 <= batch < transaction.batch):
        raise Problem(
            400, f"forgotten_through: expected 0 to {transaction.batch - 1}, or null"
        )
    return batch


def read_journal(request: Request) -> str | None:
    """Read the id of the journal that a request is meant for, if it names one."""
    is_named = contract.JOURNAL_HEADER in request.headers
    return (
        _header(request, contract.JOURNAL_HEADER, check_journal) if is_named else None
    )


def read_name_rows(request: Request) -> int:
    """Read how many rejected rows a refusal is to name; 0 if it is not asked to."""
    if contract.NAME_ROWS_HEADER not in request.headers:
        return 0
    return min(_header(request, contract.NAME_ROWS_HEADER, _rows), MOST_NAMED)


def _participant(request: Request) -> str:
    return _header(request, contract.PARTICIPANT_HEADER, check_name)


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


def _transaction(text: str) -> TransactionId:
    transaction = TransactionId.parse(text)
    g.tpc_transaction = str(transaction)
    return transaction


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
