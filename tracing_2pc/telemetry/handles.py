"""The trace context inside a handle: it goes wherever the handle goes.

What is added is one name, `tpc_carrier`, a dict of header names to values: a key of a
plain dict, once its `pre_commit` has returned and its author puts no more rows in; an
attribute, and no field, of a dataclass. Equality, hash, repr, `asdict` and `fields` of
a dataclass know nothing of it; of a dict they see the key. Any other mapping stays as
it is. No method of a handle is called, and nothing here raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tracing_2pc.model import Carrier
from tracing_2pc.telemetry import branches, lifecycle

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
    return hasattr(type(handle), "__dataclass_fields__") and keep_beside(
        handle, carrier
    )


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
            found = handle.get(CARRIER)
        else:  # past a `__getattr__`, which may be a remote call
            found = object.__getattribute__(handle, "__dict__").get(CARRIER)
    except Exception:  # noqa: BLE001 - slots, a builtin, keys that cannot be compared
        return {}
    return found if type(found) is dict else {}


def carrier_of(handle: object) -> Carrier:
    """Return the trace context of a handle: its own, or what this process knows."""
    if found := kept(handle):
        return found
    branch = branches.find(handle)
    return {} if branch is None else branch.carrier


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
    if carrier and not keep(handle, carrier) and lifecycle.is_set():
        branches.remember(handle, carrier)
    return handle
