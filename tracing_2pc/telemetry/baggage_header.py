"""W3C Baggage: what of a `baggage` header is well-formed.

OpenTelemetry reads it if the user's `OTEL_PROPAGATORS` say so, and logs what is
malformed as it was sent: by anybody, before a token was looked at.
"""

from __future__ import annotations

import re
from typing import Final

_BLANKS: Final = r"[ \t]*"
_KEY: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_VALUE: Final = r"[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*"
_PAIR: Final = f"{_KEY}{_BLANKS}={_BLANKS}{_VALUE}"
_MEMBER: Final = re.compile(
    f"{_PAIR}(?:{_BLANKS};{_BLANKS}(?:{_PAIR}|{_KEY}))*", re.ASCII
)
_AROUND: Final = re.compile(f"{_BLANKS}([=;]){_BLANKS}")
_LONGEST: Final = 8192
_LONGEST_MEMBER: Final = 4096
_MEMBERS: Final = 180


def well_formed(sent: object) -> str:
    """Return the members that can be read, as a header; empty if there is none.

    A header that is longer than anybody has to take is as if absent. Never raises.
    """
    if not isinstance(sent, str) or len(sent) > _LONGEST:
        return ""
    listed = (item.strip(" \t") for item in sent.split(","))
    members = [_AROUND.sub(r"\1", one) for one in listed if _MEMBER.fullmatch(one)]
    short = [one for one in members if len(one) <= _LONGEST_MEMBER]
    return ",".join(short[:_MEMBERS])
