"""The trace context inside a handle: it goes wherever the handle goes.

It is a dict of header names to values: a key of a plain dict, once its `pre_commit` has
returned and no more rows go in; an attribute, and no field, of a dataclass. No method
of a handle is called, and nothing here raises.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from tracing_2pc.core.model import Carrier
from tracing_2pc.tracing import spans
from tracing_2pc.tracing.decorator import branches

CARRIER: Final = "tpc_carrier"
"""Key or attribute that a handle gets: with it, the trace context survives in the
log, and a commit after a restart joins the transaction's own trace."""


def keep(handle: object, carrier: Carrier) -> bool:
    """Put a trace context into a handle; False if it cannot carry one."""
    if type(handle) is dict:
        handle[CARRIER] = carrier
        return True
    return keep_in_dataclass(handle, carrier)


def keep_in_dataclass(handle: object, carrier: Carrier) -> bool:
    """Put a trace context beside the fields of a dataclass; False for all else."""
    return dataclasses.is_dataclass(type(handle)) and keep_beside(handle, carrier)


def keep_beside(carried: object, carrier: Carrier) -> bool:
    """Put a trace context beside the fields of any object that has room for it."""
    try:
        object.__setattr__(carried, CARRIER, carrier)
    except Exception:  # noqa: BLE001 - slots, a builtin, a descriptor of that name
        return False
    return True


def kept(handle: object) -> Carrier:
    """Return the trace context in a handle; empty if there is none."""
    try:
        if type(handle) is dict:
            carrier = handle.get(CARRIER)
        else:  # past a `__getattr__`, which may be a remote call
            carrier = object.__getattribute__(handle, "__dict__").get(CARRIER)
    except Exception:  # noqa: BLE001 - slots, a builtin, keys that cannot be compared
        return Carrier()
    if type(carrier) is Carrier:
        return carrier
    return Carrier(carrier if type(carrier) is dict else {})


def carrier_of(handle: object) -> Carrier:
    """Return the trace context of a handle: its own, or what this process knows."""
    if carrier := kept(handle):
        return carrier
    branch = branches.find(handle)
    return Carrier() if branch is None else branch.carrier


def to_plain(handle: object, plain: Any) -> Any:
    """Return a handle's plain form with its trace context, for the log.

    In the log it is JSON, which has room for it whatever kind of mapping or dataclass
    the handle is.
    """
    carrier = carrier_of(handle)
    return {**plain, CARRIER: carrier} if carrier and isinstance(plain, dict) else plain


def from_plain(kind: Any, plain: Mapping[str, Any]) -> Any:
    """Build a handle from its plain form, its trace context in it or remembered."""
    handle = kind(**{k: v for k, v in plain.items() if k != CARRIER})
    carrier = plain.get(CARRIER)
    if carrier and not keep(handle, carrier) and spans.is_set():
        branches.remember(handle, carrier)
    return handle
