"""Access control for any transport: tokens from a file, with roles.

The file has one token per line, `role token [application]`; blank lines and lines
that start with `#` are skipped:

    # role   token                              only this application
    job      3f0c8f6f0b5a4a0f9a5be2b6c7d1e8f2   orders
    operator 8b1d2c3e4f5061728394a5b6c7d8e9f0
    viewer   c0ffee00c0ffee00c0ffee00c0ffee00
    producer 5e1f0a9b8c7d6e5f4a3b2c1d0e9f8a7b   shop

A producer may send events to a gateway and nothing else; its word is its own name.

A token has 16 to 512 ASCII characters, and one line. To rotate one, add its successor
as a second line, restart, move the callers, and delete the first.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import ipaddress
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol

from tracing_2pc.core.errors import ConfigurationError, RefusalError
from tracing_2pc.core.model import check_application
from tracing_2pc.core.states import Refusal, Word


class Role(Word):
    """The purpose of a token."""

    JOB = "job"
    EXECUTOR = "executor"
    OPERATOR = "operator"
    VIEWER = "viewer"
    PRODUCER = "producer"


MAY: Final[dict[str, frozenset[Role]]] = {
    "prepare": frozenset({Role.JOB, Role.EXECUTOR}),
    "commit": frozenset({Role.JOB, Role.OPERATOR}),
    "abort": frozenset({Role.JOB, Role.OPERATOR}),
    "abort branch": frozenset({Role.JOB, Role.OPERATOR}),
    "abort branch by digest": frozenset({Role.JOB, Role.OPERATOR, Role.EXECUTOR}),
    "resolve": frozenset({Role.OPERATOR}),
    "list": frozenset({Role.JOB, Role.OPERATOR, Role.VIEWER}),
    "show": frozenset({Role.JOB, Role.OPERATOR, Role.VIEWER}),
    "quarantined": frozenset({Role.OPERATOR, Role.VIEWER}),
    "again": frozenset({Role.OPERATOR}),
    "drop": frozenset({Role.OPERATOR}),
    "whoami": frozenset({Role.JOB, Role.OPERATOR, Role.VIEWER}),
    "metrics": frozenset({Role.OPERATOR, Role.VIEWER}),
    "post events": frozenset({Role.PRODUCER}),
}
"""Which roles may do what; health checks need none."""


@dataclasses.dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request."""

    role: Role | None  # None: anybody, where the participant was told insecure
    application: str | None = None  # what its token is bound to; a producer's own name

    def may(self, action: str) -> bool:
        """Return whether the caller's role allows it."""
        return self.role is None or self.role in MAY[action]

    def check(self, action: str, application: str | None = None) -> None:
        """Let the caller do this for this application, or raise `RefusalError`."""
        if not self.may(action):
            may = " or ".join(sorted(map(str, MAY[action])))
            detail = f"role {self.role}: this needs the role {may}"
            raise RefusalError(Refusal.NOT_ALLOWED, detail)
        if application and self.application and application != self.application:
            detail = f"this token is bound to {self.application}"
            raise RefusalError(Refusal.NOT_ALLOWED, detail)


class Gate(Protocol):
    """Decides who a request is from."""

    def admit(self, token: str | None, peer: str | None) -> Caller:
        """Return the caller.

        `token` is None where none came, `peer` where the caller's address is not known.

        Raises:
            RefusalError: not admitted, or not allowed.
        """

    def admit_digest(self, digest: bytes) -> Caller:
        """Return the caller who has proven to hold the token of this SHA-256.

        For a transport that sends no token. Raises as `admit` does.
        """


class LoopbackGate:
    """Allows everything to processes of this machine; refuses proxies and others."""

    def admit(self, token: str | None, peer: str | None) -> Caller:
        """Return anybody, if the peer's address is a loopback one."""
        try:
            near = ipaddress.ip_address(peer or "").is_loopback
        except ValueError:
            near = False
        if not near:
            raise RefusalError(
                Refusal.NOT_ALLOWED,
                "insecure: only loopback peers are answered, and no proxy; use tokens",
            )
        return Caller(None)

    def admit_digest(self, digest: bytes) -> Caller:
        """Refuse: no token is known here, and the peer's address is not, either."""
        return self.admit(None, None)


class TokenGate:
    """Knows tokens by their digests, so that no repr and no dump can show one.

    It takes the lines of a tokens file; messages name their `origin`.
    """

    def __init__(self, lines: Iterable[str], origin: str) -> None:
        self._callers: list[tuple[bytes, Caller]] = []
        for number, line in enumerate(lines, 1):
            if (words := line.split()) and not words[0].startswith("#"):
                where = f"{origin}, line {number}"
                digest, caller = _read_line(words, where)
                if any(digest == known for known, _ in self._callers):
                    raise ConfigurationError(f"{where}: this token stands above too")
                self._callers.append((digest, caller))
        if not self._callers:
            raise ConfigurationError(
                f"{origin} holds no token: run `tracing-2pc init` to make one"
            )

    @property
    def digests(self) -> tuple[bytes, ...]:
        """The SHA-256 of each token; for a transport that looks for one by it."""
        return tuple(digest for digest, _ in self._callers)

    @classmethod
    def read(cls, path: Path) -> TokenGate:
        """Read a tokens file, or raise `ConfigurationError`."""
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8"
            raise ConfigurationError(
                f"tokens file {path}: {reason}; run `tracing-2pc init` to make one"
            ) from None
        return cls(lines, str(path))

    def admit(self, token: str | None, peer: str | None) -> Caller:
        """Return whose token it is; every known one is compared, in constant time."""
        if token is None:
            raise RefusalError(Refusal.NOT_ADMITTED, "send a token: none came")
        return self.admit_digest(digest_of(token))

    def admit_digest(self, digest: bytes) -> Caller:
        """Return whose token has this digest, as `admit` does."""
        callers = [c for key, c in self._callers if hmac.compare_digest(key, digest)]
        if not callers:
            raise RefusalError(Refusal.NOT_ADMITTED, "this token is not known here")
        return callers[0]


def _read_line(words: list[str], where: str) -> tuple[bytes, Caller]:
    if not 2 <= len(words) <= 3:
        raise ConfigurationError(f"{where}: expected `role token [application]`")
    if words[0] not in set(map(str, Role)):
        raise ConfigurationError(
            f"{where}: the role must be job, executor, operator, viewer or producer"
        )
    if not (16 <= len(words[1]) <= 512 and words[1].isascii()):
        raise ConfigurationError(f"{where}: a token has 16 to 512 ASCII characters")
    try:
        application = check_application(words[2]) if len(words) > 2 else None
    except ValueError as error:
        raise ConfigurationError(f"{where}: {error}") from None
    if words[0] == Role.PRODUCER and application is None:
        raise ConfigurationError(
            f"{where}: a producer needs a name: its ids are its own"
        )
    return digest_of(words[1]), Caller(Role(words[0]), application)


def digest_of(token: str) -> bytes:
    """Return what is kept of a token: its SHA-256."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
