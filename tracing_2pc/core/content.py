"""The content of a branch: its media types, and the digest that is part of its name.

A digest is written as RFC 9530 writes it, in the journal and on every transport.
"""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Final

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
