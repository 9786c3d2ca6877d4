"""Who does something by hand, and why."""

from __future__ import annotations

import getpass
import os
from typing import Final

from tracing_2pc.errors import ConfigurationError

LONGEST_REASON: Final = 1000
"""Characters; participants take no more either."""


def check_reason(reason: str) -> str:
    """Return a reason that can be kept and shown, or raise `ConfigurationError`."""
    if not (kept := reason.strip()):
        raise ConfigurationError("--reason: say why; it is kept in the audit")
    if len(kept) > LONGEST_REASON or not kept.isprintable():
        raise ConfigurationError(
            f"--reason: one line of printable text, {LONGEST_REASON} characters at most"
        )
    return kept


def signature() -> str:
    """Say who runs this process, and where."""
    return f"{_user()}@{os.uname().nodename}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number without a name
        return str(os.getuid())
