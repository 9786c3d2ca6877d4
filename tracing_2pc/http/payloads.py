"""Holds payloads against a JSON Schema: the extra `tracing-2pc[event-schemas]`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

from tracing_2pc.core.errors import ConfigurationError, MalformedError

try:
    from jsonschema import Draft202012Validator, ValidationError
    from jsonschema.exceptions import SchemaError, best_match
    from jsonschema.validators import extend, validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import (
        SchemaRegistry,
        SchemaResource,
        specification_with,
    )
except ImportError:
    raise ConfigurationError(
        "schema= needs the extra tracing-2pc[event-schemas]"
    ) from None

_WHERE: Final = 120
"""Characters of where in a payload something is wrong."""

_WHY: Final = 240

_HIGHEST: Final = 10**6
"""Zero is a multiple of every power of ten."""

_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")


class _Exact(Decimal):
    """A number with all digits that were written, in messages, too."""

    __repr__ = Decimal.__str__


def payload_check(schema: Mapping[str, Any]) -> Callable[[str], None]:
    """Return a check that raises `MalformedError`, in one line, for a wrong payload.

    A payload is JSON that was read strictly before. Numbers are compared as written:
    readers get all digits, of which a double would lose some.

    Raises:
        ConfigurationError: it is no JSON Schema, refers to a missing part, or to itself
            only.
    """
    try:
        validator = _validator(json.dumps(schema))
        next(validator.iter_errors(None), None)
    except SchemaError as error:
        raise ConfigurationError(f"schema: {_describe('', error)}") from None
    except RecursionError:
        raise ConfigurationError("schema: it refers to itself without end") from None
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"schema: {error}") from None

    def check(payload: str) -> None:
        try:
            errors = validator.iter_errors(json.loads(payload, parse_float=_Exact))
            first = itertools.islice(errors, 1)
            error = best_match(first)  # of a choice, what came nearest
        except RecursionError:
            raise MalformedError("payload: it is nested too deeply") from None
        if error is not None:
            raise MalformedError(_describe("payload", error))

    return check


def _validator(text: str) -> Any:
    schema = json.loads(text)
    if not isinstance(schema, dict):
        raise TypeError("expected a dict")
    dialect = schema.get("$schema", Draft202012Validator.META_SCHEMA["$id"])
    known = validator_for({"$schema": dialect}, default=None)
    if known is None:
        raise ValueError(f"$schema {dialect!r} is not known")
    known.check_schema(schema)
    schema = json.loads(text, parse_float=_Exact)
    registry: SchemaRegistry = Registry()  # which loads nothing
    make = specification_with(dialect).create_resource
    resource = make(schema)
    _look_up(registry.resolver_with_root(resource), resource, make, set())
    types = known.TYPE_CHECKER
    if types.is_type(1.0, "integer"):  # by older dialects it is none
        types = types.redefine("integer", _is_integer)
    exact = extend(known, {"multipleOf": _multiple_of}, type_checker=types)
    return exact(schema, registry=registry)


def _look_up(
    resolver: Any,
    resource: SchemaResource,
    make: Callable[[Any], SchemaResource],
    seen: set[int],
) -> None:
    """Follow all references, so that none is found broken by an event."""
    schema = resource.contents
    if not isinstance(schema, Mapping) or id(schema) in seen:
        return
    seen.add(id(schema))
    for name in _REFERENCES:
        if name in schema:
            try:
                resolved = resolver.lookup(str(schema[name]))
            except Unresolvable:
                raise ValueError(f"{name} {schema[name]!r} is not in it") from None
            _look_up(resolved.resolver, make(resolved.contents), make, seen)
    for part in resource.subresources():
        _look_up(resolver.in_subresource(part), part, make, seen)


def _is_integer(_: Any, value: Any) -> bool:
    if isinstance(value, Decimal):
        return value == value.to_integral_value()
    return isinstance(value, int) and not isinstance(value, bool)


def _multiple_of(
    validator: Any, factor: Any, value: Any, _: Any
) -> Iterator[ValidationError]:
    """Compare what was written: 19.99 is a multiple of 0.01, by doubles it is not."""
    if not validator.is_type(value, "number"):
        return
    try:
        whole, power = _whole_and_power(value)
        step, finest = _whole_and_power(factor)
    except ValueError:
        yield ValidationError("a number is too long")
        return
    # Whatever the power: no number of that many digits is made.
    if power < finest or whole * pow(10, power - finest, step) % step:
        yield ValidationError(f"{value} is not a multiple of {factor}")


def _whole_and_power(number: Any) -> tuple[int, int]:
    """Return a number without its sign, as a whole number and a power of ten."""
    _, digits, power = Decimal(number).as_tuple()
    text = "".join(map(str, digits)).rstrip("0")
    if not text:
        return 0, _HIGHEST
    return int(text), int(power) + len(digits) - len(text)


def _describe(field: str, error: Any) -> str:
    where, message = field + error.json_path[1:], error.message
    text = f"{_cut(where, _WHERE)}: {_cut(message, _WHY)}".removeprefix(": ")
    return "".join(c if c.isprintable() else "?" for c in text)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
