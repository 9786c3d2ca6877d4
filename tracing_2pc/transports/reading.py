"""From a participant's answers to values: a list in doubt, one transaction.

Nothing is trusted: what is not exactly in its form is no answer. A carrier is no part
of the answer: one that cannot be read is an empty one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from tracing_2pc.model import (
    BranchId,
    HeldBranch,
    Holds,
    Identity,
    InDoubt,
    Shown,
    TransactionId,
    check_application,
)
from tracing_2pc.settings import check_name
from tracing_2pc.states import BranchState, ParticipantState
from tracing_2pc.transports import wire

PAGE: Final = 500
"""Branches on a page, at most: a participant bounds it in bytes, too."""

PAGES: Final = 400
"""Pages that are read of one list: several transactions of the most branches."""

_MOST: Final = 1 << 62
_LONGEST: Final = 2048


class Page(NamedTuple):
    """One page of a list, where the next one begins, and the participant's clock.

    `only` is the one application that is listed; None for all.
    """

    branches: tuple[InDoubt, ...]
    next: str | None
    now: float | None = None
    only: str | None = None


def read_page(content_type: str, body: bytes) -> Page:
    """Read a page of `GET /transactions`, or raise `ValueError`."""
    item = _object(wire.read_object(content_type, body))
    following = item.get("next")
    if following is not None and not (
        isinstance(following, str) and 0 < len(following) <= 100
    ):
        raise ValueError("next")
    found = _list(item.get("transactions"))
    if len(found) > PAGE:
        raise ValueError("transactions")
    branches = tuple(_in_doubt(one) for one in found)
    only = item.get("application")
    if only is not None:
        check_application(_text(only))
    return Page(branches, following, _time(item.get("now")), only)


def read_identity(content_type: str, body: bytes) -> Identity:
    """Read an answer of `GET /whoami`, or raise `ValueError`."""
    item = _object(wire.read_object(content_type, body))
    names = _object(item.get("participants"))
    return Identity(
        _text(item.get("journal")),
        {check_application(_text(a)): check_name(_text(n)) for a, n in names.items()},
    )


def _in_doubt(found: object) -> InDoubt:
    item = _object(found)
    if item.get("state") != BranchState.PREPARED:
        raise ValueError("state")
    return InDoubt(
        TransactionId.parse(_text(item.get("transaction_id"))),
        BranchId.parse(_text(item.get("branch"))),
        _number(item.get("age")),
        _count(item.get("rows")),
        _carrier(item.get("carrier")),
    )


def _carrier(found: object) -> dict[str, str]:
    """Read a trace context, which is no evidence: one that cannot be read is empty."""
    try:
        item = _object(found)
        if len(item) > 20:
            return {}
        return {_text(name): _text(value) for name, value in item.items()}
    except ValueError:
        return {}


def read_shown(item: Mapping[str, Any]) -> Shown:
    """Read an answer of `GET /transactions/{id}` that names it, or `ValueError`.

    An older participant tells no times, no clock and not what is kept busy.
    """
    now = item.get("now")
    return Shown(
        ParticipantState(_text(item.get("state"))),
        tuple(_held(one) for one in _list(item.get("branches"))),
        item.get("resolved_by_hand") is True,
        None if now is None else _number(now),
        _holds(_object(item.get("holds", {}))),
    )


def _held(found: object) -> HeldBranch:
    item = _object(found)
    return HeldBranch(
        BranchId.parse(_text(item.get("branch"))),
        BranchState(_text(item.get("state"))),
        _count(item.get("rows")),
        _text(item.get("digest")),
        _time(item.get("prepared_at")),
        _time(item.get("sealed_at")),
    )


def _holds(item: Mapping[str, Any]) -> Holds:
    names = [name for name in ("slots", "locks", "horizon") if name in item]
    return Holds(
        _count(item.get("rows", 0)), **{name: _count(item[name]) for name in names}
    )


def _object(found: object) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise ValueError("no object")
    return found


def _list(found: object) -> list[Any]:
    if not isinstance(found, list):
        raise ValueError("no list")
    return found


def _text(found: object) -> str:
    if not isinstance(found, str) or len(found) > _LONGEST or not found.isprintable():
        raise ValueError("no text")
    return found


def _count(found: object) -> int:
    if isinstance(found, bool) or not isinstance(found, int):
        raise ValueError("no number")
    if not 0 <= found <= _MOST:
        raise ValueError("no count")
    return found


def _time(found: object) -> float | None:
    return None if found is None else _number(found)


def _number(found: object) -> float:
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        raise ValueError("no number")
    if not (math.isfinite(found) and 0 <= found <= _MOST):
        raise ValueError("no number of seconds")
    return float(found)
