"""Addresses in settings: their checks before any connection."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Container, Mapping
from typing import Final, TypeVar
from urllib.parse import SplitResult, urlsplit

_LABEL: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_NUMBER: Final = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")


T = TypeVar("T")


def key_of(keys: Container[str], application: str, name: str) -> str:
    """Return under which key an application's participant has its address.

    `application/name` is the application's own; `name` is for those without.
    """
    own = f"{application}/{name}"
    return own if own in keys else name


def name_of(key: str) -> str:
    """Return a participant's name from a key."""
    return key.rpartition("/")[2]


def addresses_of(addresses: Mapping[str, T], application: str) -> dict[str, T]:
    """Return by name what there is for an application's participants."""
    own = f"{application}/"
    return {
        name_of(key): addresses[key_of(addresses, application, name_of(key))]
        for key in addresses
        if "/" not in key or key.startswith(own)
    }


def how_to_add(name: str, url: str | None) -> str:
    """Return how to add a missing address to the settings; the one on record if any."""
    line = "it" if url is None else f'{name} = "{url}"'
    return f"add {line} to `participants` in tpc.toml"


def split_address(url: str) -> SplitResult:
    """Return the parts of a URL, or raise `ValueError`, which quotes nothing of it.

    Every client finds the same host in it: characters that parsers drop, fold or take
    for another one, and numbers that only some take for an address, are refused.
    """
    if not (url.isascii() and url.isprintable()) or {" ", "\\"} & {*url}:
        raise ValueError(
            "a URL is printable ASCII without spaces and backslashes: write other "
            "letters of a host as xn--…, of a path as %…"
        )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError(_EXPECTED) from None
    if "@" in parts.netloc:
        raise ValueError("a URL must not hold a password: use a reference")
    brackets = parts.netloc.startswith("[")
    if host and (port == 0 or brackets != (":" in host) or not _is_host(host)):
        raise ValueError(_EXPECTED)
    return parts


_EXPECTED: Final = (
    "expected a host that is a name, an address such as 10.1.2.3, or [::1], and a port "
    "of 1 to 65535; no address is link-local (169.254.…), multicast or 0.0.0.0"
)


def _is_host(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        *_, last = labels = host.removesuffix(".").split(".")
        fits = len(host) <= 253 and all(map(_LABEL.fullmatch, labels))
        return fits and not _NUMBER.fullmatch(last)
    address = getattr(address, "ipv4_mapped", None) or address
    # Metadata of a cloud. IPv6's link-local ones are a laboratory's, with a zone.
    is_local = address.version == 4 and address.is_link_local
    return not (is_local or address.is_multicast or address.is_unspecified)
