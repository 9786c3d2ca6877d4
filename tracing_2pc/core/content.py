"""The content of a branch: its media types, its digest, and its values.

A digest is part of a branch's name, written as RFC 9530 writes it, in the journal and
on every transport. Types of values are Arrow's, which this module does not import.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import hashlib
import re
from collections.abc import Callable, Collection
from typing import Any, Final

ARROW: Final = "application/vnd.apache.arrow.stream"
NDJSON: Final = "application/x-ndjson"

_DIGEST: Final = re.compile(r"sha-256=:([A-Za-z0-9+/]{43}=):")


def write_digest(sha256: bytes) -> str:
    """Write a SHA-256 as a `Content-Digest` value."""
    return f"sha-256=:{base64.b64encode(sha256).decode()}:"


def digest_of(body: bytes) -> str:
    """Return the `Content-Digest` of a body at hand."""
    return write_digest(hashlib.sha256(body).digest())


def check_digest(text: str) -> str:
    """Return a digest in its one spelling, or raise `ValueError`."""
    if not (match := _DIGEST.fullmatch(text)):
        raise ValueError("expected sha-256=:<base64 of 32 bytes>:")
    if write_digest(base64.b64decode(match[1])) != text:
        raise ValueError("the base64 has set bits after its end")
    return text


_PLAIN: Final = re.compile("[A-Za-z_][A-Za-z_0-9]*")
_INTERVALS: Final = ("duration", "month")
_NO_KEYS: Final = ("struct", "list", "map", "binary", "float", "double", *_INTERVALS)
_MARKS: Final = {
    b"variant": "to_json",
    b"geometry": "ST_AsBinary",
    b"geography": "ST_AsBinary",
}
"""What Spark marks the fields inside of its own types with, and what reads them."""


def sql_name(name: str) -> str:
    """Return the name of a column as Spark's SQL takes it."""
    return name if _PLAIN.fullmatch(name) else f"`{name.replace('`', '``')}`"


def made_by(function: str, name: str) -> str:
    """Return the SQL that a function makes a column anew with, under its name."""
    return f"{function}({sql_name(name)}) AS {sql_name(name)}"


def cast_of(field: Any) -> str | None:
    """Return how Spark casts a column that no store has a type for; None: some have.

    Intervals are numbers to most readers, and a variant is Spark's inner bytes.
    """
    name, kind = field.name, field.type
    if str(kind).startswith(_INTERVALS):
        return f"CAST({sql_name(name)} AS STRING)"
    inner = [kind.field(n) for n in range(kind.num_fields)]
    for mark in (mark for child in inner for mark in child.metadata or ()):
        if mark in _MARKS:
            return made_by(_MARKS[mark], name)
    return made_by("to_json", name) if any(map(cast_of, inner)) else None


def json_cast_of(field: Any) -> str | None:
    """Return how Spark casts a column that JSON has no form for; None: it has one."""
    if _has_no_keys(field.type):
        is_map = hasattr(field.type, "item_type")
        is_deep = not is_map or _has_no_keys(field.type.item_type)
        return made_by("to_json" if is_deep else "map_entries", field.name)
    return cast_of(field)


def _has_no_keys(kind: Any) -> bool:
    """Tell if there is a map whose keys are no text that everybody reads."""
    if hasattr(kind, "item_type") and str(kind.key_type).startswith(_NO_KEYS):
        return True
    return any(_has_no_keys(kind.field(n).type) for n in range(kind.num_fields))


def typed(schema: Any, names: Collection[str]) -> list[str]:
    """Return the columns that have one of these names, or a type to add them by.

    One that has nothing but nulls has none: it is left out until a value comes.
    """
    return [f.name for f in schema if f.name in names or str(f.type) != "null"]


def json_value(value: Any, kind: Any, plain: Callable[[Any], Any]) -> Any:
    """Return a value with maps as objects, and its elements as by `plain`."""
    if isinstance(value, dict):
        return {f.name: json_value(value[f.name], f.type, plain) for f in kind}
    if not isinstance(value, list):
        return plain(value)
    if hasattr(kind, "item_type"):
        return {_key(k): json_value(v, kind.item_type, plain) for k, v in value}
    return [json_value(inner, kind.value_type, plain) for inner in value]


def _key(key: Any) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    return str(plain_text(key))


def plain_text(value: Any) -> Any:
    """Return what JSON has no form for as text: a time, a decimal, bytes."""
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return f"{value:f}"
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value
