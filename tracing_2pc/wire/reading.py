"""From a participant's answers to values: a list in doubt, one transaction.

An answer that is not exactly in its form is `ValueError`. A trace context is no
evidence: one that cannot be read is empty.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeVar

from tracing_2pc.core.model import (
    BranchId,
    Carrier,
    HeldBranch,
    Holds,
    Identity,
    InDoubt,
    Listing,
    QuarantinedRequest,
    QuarantineListing,
    RejectedRow,
    RequestKey,
    Shown,
    TransactionId,
    Unfit,
    check_application,
    check_journal,
)
from tracing_2pc.core.settings import check_name
from tracing_2pc.core.states import (
    BranchState,
    ParticipantState,
    RelayTrouble,
    RequestState,
)
from tracing_2pc.wire.contract import printable

PAGE: Final = 500  # branches on a page, at most: a participant bounds it in bytes, too

PAGES: Final = 400
"""Pages that are read of one list: several transactions of the most branches."""

_MOST: Final = 1 << 62
_LONGEST: Final = 2048

T = TypeVar("T")


def read_page(answer: object) -> tuple[Listing, str | None]:
    """Read a page of `GET /transactions`, and where the next one begins."""
    item, branches, following = _page(answer, "transactions")
    only = item.get("application")
    if only is not None:
        check_application(_text(only))
    now = _time(item, "now")
    return Listing(tuple(map(_in_doubt, branches)), None, now, only), following


def _page(answer: object, field: str) -> tuple[dict[str, Any], list[Any], str | None]:
    item = _typed(answer, dict)
    following = item.get("next")
    if following is not None and not 0 < len(_typed(following, str)) <= 200:
        raise ValueError("next")
    if len(listed := _typed(item.get(field), list)) > PAGE:
        raise ValueError(field)
    return item, listed, following


def read_rejected(answer: object, rows: int) -> tuple[RejectedRow, ...]:
    """Read the rejected rows that a refusal names, of so many; none if it is none."""
    listed = answer.get("rejected_rows") if isinstance(answer, dict) else None
    with contextlib.suppress(ValueError):
        read = [_rejected(item, rows) for item in _typed(listed, list)]
        return tuple({rejected.row: rejected for rejected in read}.values())
    return ()


def _rejected(item: object, rows: int) -> RejectedRow:
    fields = _typed(item, dict)
    if not 0 <= (row := _typed(fields.get("row"), int)) < rows:
        raise ValueError("row")
    column, reason = (printable(fields.get(n), 200) for n in ("column", "reason"))
    return RejectedRow(row, column, reason, is_peers=fields.get("is_peers") is True)


class WhoAmI(NamedTuple):
    """Which participant answers, the role of our token there, and its measurements."""

    identity: Identity
    role: str
    gauges: Mapping[str, float]
    pooled: bool
    unfit: tuple[Unfit, ...]
    version: str | None


def read_whoami(answer: object) -> WhoAmI:
    """Read an answer of `GET /whoami`; a measurement that is no number is left out."""
    item = _typed(answer, dict)
    names = _typed(item.get("participants"), dict)
    identity = Identity(
        check_journal(_text(item.get("journal"))),
        {check_application(_text(a)): check_name(_text(n)) for a, n in names.items()},
    )
    gauges = {}
    for name, value in _typed(item.get("gauges"), dict).items():
        with contextlib.suppress(ValueError):
            gauges[_text(name)] = _number(value)
    role, pooled = _text(item.get("role")), item.get("pooled") is True
    unfit = [
        Unfit.parse([_text(word) for word in _typed(words, list)])
        for words in _typed(item.get("unfit", []), list)
    ]
    version = item.get("version")
    version = version[:80] if isinstance(version, str) else None
    return WhoAmI(identity, role, gauges, pooled, tuple(unfit), version)


def _in_doubt(branch: object) -> InDoubt:
    item = _typed(branch, dict)
    if item.get("state") != BranchState.PREPARED:
        raise ValueError("state")
    carrier = Carrier()
    with contextlib.suppress(ValueError):
        carrier = _carrier(item.get("carrier"))
    return InDoubt(
        TransactionId.parse(_text(item.get("transaction_id"))),
        BranchId.parse(_text(item.get("branch"))),
        _number(item.get("age")),
        _count(item.get("rows")),
        carrier,
    )


def _carrier(headers: object) -> Carrier:
    item = _typed(headers, dict)
    if len(item) > 20:
        raise ValueError("carrier")
    return Carrier({_text(name): _text(value) for name, value in item.items()})


def read_quarantine(answer: object) -> tuple[QuarantineListing, str | None]:
    """Read a page of `GET /outbox`, and where the next one begins."""
    item, requests, following = _page(answer, "requests")
    read = tuple(map(_quarantined, requests))
    return QuarantineListing(read, _number(item.get("now"))), following


def _quarantined(request: object) -> QuarantinedRequest:
    item = _typed(request, dict)
    who, reason = (
        None if item.get(name) is None else _text(item[name])
        for name in ("who", "reason")
    )
    trouble = item.get("trouble")
    return QuarantinedRequest(
        RequestKey.parse(_text(item.get("key"))),
        RequestState(_text(item.get("state"))),
        _count(item.get("status")),
        _number(item.get("since")),
        # A record's text, whatever it holds: who shows it makes it safe.
        _typed(item.get("body"), str),
        _count(item.get("length")),
        _count(item.get("again")),
        _time(item, "dropped_at"),
        who,
        reason,
        None if trouble is None else RelayTrouble(_text(trouble)),
        None if item.get("answer") is None else _typed(item["answer"], str),
    )


def read_shown(item: Mapping[str, Any]) -> Shown:
    """Read an answer of `GET /transactions/{id}`, of an older release, too."""
    return Shown(
        ParticipantState(_text(item.get("state"))),
        tuple(map(_held, _typed(item.get("branches"), list))),
        item.get("resolved_by_hand") is True,
        _time(item, "now"),
        _holds(_typed(item.get("holds", {}), dict)),
    )


def read_committed(problem: Mapping[str, Any] | None) -> TransactionId | None:
    """Return the committed attempt of the batch that a refusal names, if any."""
    with contextlib.suppress(ValueError):
        return TransactionId.parse(_text((problem or {}).get("committed")))
    return None


def _held(branch: object) -> HeldBranch:
    item = _typed(branch, dict)
    return HeldBranch(
        BranchId.parse(_text(item.get("branch"))),
        BranchState(_text(item.get("state"))),
        _count(item.get("rows")),
        _text(item.get("digest")),
        _time(item, "prepared_at"),
        _time(item, "sealed_at"),
    )


def _holds(item: Mapping[str, Any]) -> Holds:
    names = [name for name in ("slots", "locks", "horizon") if name in item]
    return Holds(
        _count(item.get("rows", 0)), **{name: _count(item[name]) for name in names}
    )


def _typed(value: object, kind: type[T]) -> T:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"no {kind.__name__}")
    return value


def _text(value: object) -> str:
    text = _typed(value, str)
    if len(text) > _LONGEST or not text.isprintable():
        raise ValueError("no text")
    return text


def _count(value: object) -> int:
    count = _typed(value, int)
    if not 0 <= count <= _MOST:
        raise ValueError("no count")
    return count


def _number(value: object) -> float:
    number = float(_count(value)) if isinstance(value, int) else _typed(value, float)
    if not (math.isfinite(number) and 0 <= number <= _MOST):
        raise ValueError("no number of seconds")
    return number


def _time(item: Mapping[str, Any], name: str) -> float | None:
    return None if item.get(name) is None else _number(item[name])
