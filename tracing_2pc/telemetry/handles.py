"""The trace context inside a handle: it goes wherever the handle goes.

What is added is one name, `tpc_carrier`, a dict of header names to values: a key of a
handle that is a mutable mapping; an attribute, and no field, of one that is a
dataclass. Equality, hash, repr, `asdict` and `fields` of a dataclass know nothing of
it; of a mapping they see the key.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, MutableMapping
from typing import Any, Final

from tracing_2pc.model import Carrier
from tracing_2pc.telemetry import branches, lifecycle

CARRIER: Final = "tpc_carrier"
"""Key or attribute that a handle gets: with it, the trace context survives in the
log, and a commit after a restart joins the transaction's own trace."""


def keep(handle: object, carrier: Carrier) -> bool:
    """Put a trace context into a handle; False if it cannot carry one."""
    if isinstance(handle, MutableMapping):
        try:
            handle[CARRIER] = carrier
        except Exception:  # noqa: BLE001 - a mapping may refuse keys in its own way
            return False
        return True
    return dataclasses.is_dataclass(handle) and keep_beside(handle, carrier)


def keep_beside(carried: object, carrier: Carrier) -> bool:
    """Put a trace context beside the fields of any object that has room for it."""
    try:
        object.__setattr__(carried, CARRIER, carrier)
    except (AttributeError, TypeError):  # slots, a builtin, a class
        return False
    return True


def kept(handle: object) -> Carrier:
    """Return the trace context in a handle; empty if there is none."""
    if isinstance(handle, dict):
        found = handle.get(CARRIER)
    else:
        found = getattr(handle, "__dict__", {}).get(CARRIER)
        if found is None and isinstance(handle, Mapping):
            found = _in_mapping(handle)
    return found if isinstance(found, dict) else {}


def _in_mapping(handle: Mapping[Any, Any]) -> object:
    try:
        return handle.get(CARRIER)
    except Exception:  # noqa: BLE001 - a mapping may refuse keys in its own way
        return None


def carrier_of(handle: object) -> Carrier:
    """Return the trace context of a handle: its own, or what this process knows."""
    if found := kept(handle):
        return found
    branch = branches.find(handle)
    return {} if branch is None else branch.carrier


def to_plain(handle: object, plain: Any) -> Any:
    """Return a handle's plain form with its trace context, for the log."""
    carrier = carrier_of(handle)
    return {**plain, CARRIER: carrier} if carrier and isinstance(plain, dict) else plain


def from_plain(kind: Any, plain: Mapping[str, Any]) -> Any:
    """Build a handle from its plain form, its trace context in it or remembered."""
    handle = kind(**{k: v for k, v in plain.items() if k != CARRIER})
    carrier = plain.get(CARRIER)
    if carrier and not keep(handle, carrier) and lifecycle.is_set():
        branches.remember(handle, carrier)
    return handle
