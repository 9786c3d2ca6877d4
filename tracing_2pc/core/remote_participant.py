"""A participant that is reached over a network: its port, and how one is opened.

A transport is one class that has this port, and a name for it: built in, registered by
`register_transport`, or an entry point. Nothing else knows which transport is used:
neither a sink, nor recovery, nor the watcher.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib import metadata
from typing import IO, Any, Final, NamedTuple, Protocol, runtime_checkable
from urllib.parse import urlsplit

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.model import (
    BranchId,
    Identity,
    Listing,
    ParticipantDescription,
    QuarantineListing,
    RequestKey,
    Shown,
    TransactionId,
)
from tracing_2pc.core.ports import Participant
from tracing_2pc.core.states import Decision, RequestState, Vote

ENTRY_POINTS: Final = "tracing_2pc.transports"
"""The group in which a package names its transport, by URL scheme."""


class _BuiltIn(NamedTuple):
    module: str
    attribute: str
    extra: str = ""  # that it needs
    broker: str | None = None  # variable that tells a program the broker of its URLs


_HTTP: Final = _BuiltIn("tracing_2pc.http.client", "HttpParticipant")
_GRPC: Final = _BuiltIn("tracing_2pc.grpc.client", "GrpcParticipant", "grpc")
_NATS: Final = _BuiltIn(
    "tracing_2pc.nats.client", "NatsParticipant", "nats", "NATS_URL"
)
_EMBEDDED: Final = _BuiltIn(
    "tracing_2pc.embedded.participant", "EmbeddedParticipant", "postgres"
)

EMBEDDED: Final = frozenset({"activemq", "kafka", "postgresql", "python", "sqlite"})
"""Schemes of a participant without a service: its address has options of its own."""

_BUILT_IN: Final = {
    **dict.fromkeys(("http", "https"), _HTTP),
    **dict.fromkeys(("grpc", "grpcs"), _GRPC),
    **dict.fromkeys(("nats", "nats+tls"), _NATS),
    **dict.fromkeys(sorted(EMBEDDED), _EMBEDDED),
}

Transport = Callable[[str, str, str | None, float], "RemoteParticipant"]
"""Makes a participant of its name, URL, token and timeout, and opens nothing."""

_registered: Final[dict[str, Transport]] = {}


@runtime_checkable
class RemoteParticipant(Participant, Protocol):
    """One participant, as a task, the driver or an operator asks it.

    It can be pickled, and opens no connection until it is asked: a task gets a copy. It
    is called from several threads, and after a fork. A request is sent once: the caller
    decides whether it is sent again. `commit` and `abort` are those of `Participant`;
    they are also what recovery uses.

    An answer counts only if it names the transaction, and the state that was asked for.
    Any other answer leaves the outcome unknown. So each method raises one of these, and
    nothing else of the transport's:

    - `ParticipantRefusedError`: a definite no, with a `Refusal` and a state;
    - `ParticipantUnavailableError`: no answer that can be trusted, so the request may
      or may not have been obeyed; its `refusal` is set where the participant asked the
      caller to wait, or did not admit it;
    - `ConfigurationError`: nothing was sent, because the token cannot be read, or none
      is set and the transport needs one.

    Each request carries the caller's trace context, and the id of the `journal` that it
    is for, if that is known: from the record, or as it is given. The participant
    refuses a request for another journal as misdirected.
    """

    @property
    def url(self) -> str:
        """Where it is reached, without a password."""

    def prepare(
        self,
        transaction: TransactionId,
        branch: BranchId,
        body: Callable[[], IO[bytes]],
        *,
        rows: int,
        length: int,
        digest: str,
        journal: str | None = None,
        name_rows: int | None = None,
    ) -> Vote:
        """Send a branch, and return the vote for exactly these rows and this digest.

        Safe to repeat with the same bytes: the participant answers the same. `body`
        opens the records as an Arrow stream, of `length` bytes; it is closed here. The
        digest is as `core.content` writes it. A refusal with `name_rows` names rows
        without which it would vote commit, one more than so many at most; it needs no
        more than to be repeated with it. A participant that cannot name any refuses as
        it does without.

        Raises:
            RejectedRowsError: it votes abort because of rows, which it names.
            ParticipantRefusedError: it votes abort, or counted something else.
            ParticipantUnavailableError: no answer; the branch may be prepared.
        """

    def abort_branch(
        self,
        transaction: TransactionId,
        branch: BranchId,
        digest: str,
        journal: str | None = None,
    ) -> None:
        """Abort one branch, by the task that wrote it, before its receipt is out."""

    def prepared(self, application: str | None = None) -> Listing:
        """List what is in doubt there, oldest first; changes nothing.

        The list takes little more than the timeout. `missing` is set if the list ends
        early; `only` is the application to which the token is bound.

        Raises:
            ParticipantUnavailableError: no first page that can be trusted.
        """

    def show(self, transaction: TransactionId, journal: str | None = None) -> Shown:
        """Return what it holds of one transaction; changes nothing.

        *Unknown* and *forgotten* are answers. Neither of them is an outcome.
        """

    def resolve(
        self,
        transaction: TransactionId,
        outcome: Decision,
        reason: str,
        journal: str | None = None,
    ) -> None:
        """Have an orphan committed or aborted there, by hand; needs the role operator.

        Not repeated: a second one is refused, because the transaction is sealed.
        """

    def identity(self) -> Identity:
        """Return which journal it has, and how applications call it."""

    def describe(self) -> ParticipantDescription:
        """Ask for its state, and for the rights of our token; changes nothing.

        Never raises: faults are in the description. Takes several timeouts.
        """


@runtime_checkable
class Embedded(Protocol):
    """A participant without a service, whose tables the driver makes.

    A `RemoteParticipant` may have this, too, and it raises the same errors.
    """

    @property
    def is_local(self) -> bool:
        """Whether only processes of this machine reach it."""

    def set_up(self) -> None:
        """Make its tables, if they are not there, and its topic. Idempotent.

        Raises:
            ConfigurationError: with the setting or the SQL that cures it.
        """

    def start(self) -> None:
        """Send from this process what waits after commits, until `rest`; not in forks.

        Never raises: where it cannot start now, the next commit here starts it.
        """

    def rest(self) -> None:
        """Send nothing more from this process; waiting requests are for another one."""

    def waiting(self) -> int:
        """Count records that are committed and not sent yet."""


@runtime_checkable
class RemoteOutbox(Protocol):
    """A participant that can be asked about its outbox's quarantine, by an operator.

    A `RemoteParticipant` may have this, too, and it raises the same errors. Without an
    outbox the answer is *unknown*.
    """

    def quarantined(
        self,
        application: str | None = None,
        state: RequestState = RequestState.QUARANTINED,
        limit: int = 100,
        key: RequestKey | None = None,
    ) -> QuarantineListing:
        """List those in quarantine, or dropped ones, oldest first; or one of them."""

    def send_again(self, key: RequestKey, *, who: str, reason: str) -> RequestState:
        """Put a request back into its queue; needs the role operator. Idempotent.

        Raises:
            ParticipantRefusedError: unknown: it never was in quarantine there;
                conflict: it was dropped.
        """

    def drop_request(self, key: RequestKey, *, who: str, reason: str) -> RequestState:
        """Take a request out of quarantine, for ever; needs the role operator.

        Idempotent: the first reason stands.

        Raises:
            ParticipantRefusedError: unknown: it never was in quarantine there;
                conflict: it is sent again.
        """


def open_participant(
    name: str, url: str, token: str | None, timeout: float
) -> RemoteParticipant:
    """Return the participant at a URL, by the transport that its scheme names.

    Nothing is asked. Built-in and registered transports need no package metadata, so
    that they are found where a package was shipped as a zip file. `token` is a
    reference, read in each process when it is needed, None for a participant that asks
    for none; `timeout` is in seconds, to connect and for each read.

    Raises:
        ConfigurationError: no transport is known by that scheme, or a package that it
            needs is not installed.
    """
    scheme = url.partition(":")[0].lower()
    transport: Any
    if scheme in _BUILT_IN:
        transport = _load(scheme, name)
    elif scheme in _registered:
        transport = _registered[scheme]
    elif entry_point := next(iter(_entry_points(scheme)), None):
        transport = entry_point.load()
    else:
        raise ConfigurationError(f"participant {name!r}: {no_transport(url)}")
    participant: RemoteParticipant = transport(name, url, token, timeout)
    return participant


def _load(scheme: str, name: str) -> Any:
    module, attribute, extra, _ = _BUILT_IN[scheme]
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"participant {name!r}: {scheme}:// needs {error.name}: "
            f"pip install 'tracing-2pc[{extra}]'"
        ) from None


def register_transport(scheme: str, transport: Transport) -> None:
    """Let URLs of a scheme be opened by a transport, in this process.

    For a package that is no installed distribution: one in a zip file, or a module
    beside the job. Others name theirs as an entry point. Tasks need no registration:
    they get a pickled participant, so its class has to be importable there. A scheme
    that is registered again gets the new transport.

    Raises:
        ConfigurationError: this library has a transport of its own for the scheme.
    """
    if scheme in _BUILT_IN:
        raise ConfigurationError(f"{scheme}:// is built in: choose another scheme")
    _registered[scheme.lower()] = transport


def has_transport(scheme: str) -> bool:
    """Return whether URLs of a scheme can be opened; loads nothing."""
    return scheme in _BUILT_IN or scheme in _registered or bool(_entry_points(scheme))


def broker_of(url: str) -> dict[str, str]:
    """Return the variable that tells a program the broker of a URL; loads nothing.

    It is empty where the participant itself listens at the URL.
    """
    place = urlsplit(url)
    built_in = _BUILT_IN.get(place.scheme)
    if built_in is None or built_in.broker is None:
        return {}
    return {built_in.broker: f"{place.scheme}://{place.netloc}"}


def no_transport(url: str) -> str:
    """Return the message for a URL that no transport is known for."""
    scheme = url.partition(":")[0]
    known = "://, ".join(name for name in _BUILT_IN if name != "python")
    return (
        f"no transport for {scheme}:// is known: use {known}://, "
        f"python:module:attribute, install a package that has {scheme} among its "
        f"{ENTRY_POINTS}, or call register_transport"
    )


def _entry_points(scheme: str) -> metadata.EntryPoints:
    return metadata.entry_points(group=ENTRY_POINTS, name=scheme)
