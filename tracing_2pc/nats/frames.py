"""Messages on NATS: frames, each a line of JSON and then bytes, with a MAC.

Any client that may subscribe to a subject sees its messages, and may answer. So a token
is never sent: both sides derive a key from its digest, and each frame carries an HMAC
by it, over its content and the exchange that it belongs to.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

CHUNK: Final = 1 << 18
"""Bytes of a body in one frame, at most; less where the NATS server takes less."""

WINDOW: Final = 8
"""Frames of a body that are under way: more are sent when these have been read."""

LONGEST: Final = CHUNK
"""Bytes after a head, at most."""

HEAD: Final = 1 << 15
"""Bytes of a frame's head, at most: one that is longer is none."""

_LABEL: Final = b"tpc-nats-v1"
_UNSEALED: Final = b"-"


class ForgedError(Exception):
    """A frame that the holder of the key has not made, or not for this exchange.

    Or one that is longer than any that we make, or not in its form.
    """


def key_of(token_digest: bytes) -> bytes:
    """Return the key of a token, of which a participant keeps the SHA-256 only."""
    return hmac.digest(token_digest, _LABEL, "sha256")


def name_of(key: bytes) -> str:
    """Return what a key is called in public; it tells nothing of the key."""
    return hmac.digest(key, b"name", "sha256")[:8].hex()


def fits(head: Mapping[str, Any], **form: type) -> bool:
    """Check that a head has these members, of these types; none is a boolean."""
    return all(type(head.get(name)) is kind for name, kind in form.items())


class Seal(NamedTuple):
    """How the frames of one exchange, in one direction, are made and checked."""

    # None where the caller has no token; then anybody may have made a frame.
    key: bytes | None
    # Who speaks, and both sides' random numbers: a frame of another exchange, or of the
    # other side, does not fit.
    context: str

    def write(self, head: Mapping[str, Any], data: bytes = b"") -> bytes:
        """Return a frame."""
        content = json.dumps(head).encode() + b"\n" + data
        return self._mac(content) + b" " + content

    def read(self, frame: bytes) -> tuple[dict[str, Any], bytes]:
        """Return head and data of a frame, or raise `ForgedError`."""
        mac, _, content = frame.partition(b" ")
        if not hmac.compare_digest(mac, self._mac(content)):
            raise ForgedError
        line, _, data = content.partition(b"\n")
        if len(line) > HEAD or len(data) > LONGEST:
            raise ForgedError
        try:
            head = json.loads(line)
        except (ValueError, RecursionError):
            raise ForgedError from None
        if not isinstance(head, dict):
            raise ForgedError
        return head, data

    def _mac(self, content: bytes) -> bytes:
        if self.key is None:
            return _UNSEALED
        mac = hmac.new(self.key, f"{self.context}\n".encode(), "sha256")
        mac.update(content)
        return mac.hexdigest().encode()


def seal_of_offer(key: bytes | None, nonce: str) -> Seal:
    """Return the seal of a participant's first word."""
    return Seal(key, f"offer {nonce}")


def seal_of_request(key: bytes | None, nonce: str, challenge: str) -> Seal:
    """Return the seal of a client's frames."""
    return Seal(key, f"request {nonce} {challenge}")


def seal_of_answer(key: bytes | None, nonce: str, challenge: str) -> Seal:
    """Return the seal of a participant's frames."""
    return Seal(key, f"answer {nonce} {challenge}")
