"""Links from a transaction to its pages elsewhere: Jaeger, SkyWalking, Spark."""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import quote, urlsplit

from tracing_2pc.core.addresses import split_address
from tracing_2pc.core.model import TransactionId

PARTS: Final = ("trace", "transaction", "application")
"""What a template may have in braces."""


def check_link(template: str) -> str:
    """Return the template of a link, or raise `ValueError` saying what to change."""
    shown, known = repr(template[:80]), " and ".join(f"{{{part}}}" for part in PARTS)
    if "{" in template.partition("://")[2].partition("/")[0]:
        raise ValueError(f"{known} may stand in a link after the host only")
    parts = split_address(template)
    if "@" in template:  # it may be a mistyped URL's password
        shown = "a link"
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"{shown}: expected http://… or https://…")
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"{shown}: {error}") from None
    for _, name, form, conversion in parsed:
        if name is not None and (name not in PARTS or form or conversion):
            raise ValueError(f"{shown}: no {{{name}}} here: use {known}")
    return template


def links_of(
    templates: Mapping[str, str], transaction: TransactionId, trace: str | None
) -> dict[str, str]:
    """Fill checked templates in; those with a trace (hex) only if there is one."""
    values = {
        "trace": quote(trace or "", safe=""),
        "transaction": str(transaction),
        "application": transaction.application,
    }
    return {
        name: template.format_map(values)
        for name, template in templates.items()
        if trace or "{trace}" not in template
    }


class Place(NamedTuple):
    """Where to begin in another tool."""

    name: str  # of the link
    url: str  # its page, or that of its host where the link is to one transaction
    finds: str  # by what the link finds a transaction; empty where it finds none


def places_of(templates: Mapping[str, str]) -> list[Place]:
    """Return a place for each template, as `check_link` has let it through."""
    places = []
    for name, template in templates.items():
        parts = [part for _, part, _, _ in string.Formatter().parse(template) if part]
        host = urlsplit(template)._replace(path="/", query="", fragment="").geturl()
        places.append(Place(name, host if parts else template, (*parts, "")[0]))
    return places
