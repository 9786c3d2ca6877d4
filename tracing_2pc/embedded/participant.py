"""A participant whose database each caller opens: driver, task, watcher."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import metadata
from operator import methodcaller
from typing import IO, Final, TypeVar

import sqlalchemy as sa
from opentelemetry.context import get_current

from tracing_2pc.core import content
from tracing_2pc.core.access import Caller
from tracing_2pc.core.errors import (
    ConfigurationError,
    ParticipantError,
    ParticipantRefusedError,
    ParticipantUnavailableError,
    RefusalError,
    RejectedRowsError,
)
from tracing_2pc.core.forks import after_fork
from tracing_2pc.core.model import (
    BranchId,
    HeldBranch,
    Holds,
    Identity,
    InDoubt,
    Listing,
    ParticipantDescription,
    QuarantineListing,
    RejectedRow,
    RequestKey,
    Shown,
    TransactionId,
    TransactionRecord,
    Unfit,
)
from tracing_2pc.core.ports import Step
from tracing_2pc.core.states import (
    ASK_AGAIN,
    BranchState,
    Decision,
    ParticipantState,
    Refusal,
    RequestState,
    Vote,
)
from tracing_2pc.embedded.addresses import Address, read_address
from tracing_2pc.embedded.idle import in_use
from tracing_2pc.participant.answers import Answer, BranchRef
from tracing_2pc.participant.body import Body
from tracing_2pc.participant.engine import Order, ParticipantEngine, Query
from tracing_2pc.participant.metrics import record_request
from tracing_2pc.participant.requests import (
    KeepsRequests,
    RequestOrder,
    RequestQuery,
)
from tracing_2pc.participant.service import ParticipantService
from tracing_2pc.store.engines.database import describe_error, describe_not_now
from tracing_2pc.store.engines.silence import answering_within
from tracing_2pc.tracing.gauges import observe_gauges
from tracing_2pc.tracing.propagation import storable_context
from tracing_2pc.tracing.spans import client_span

_ANYBODY: Final = Caller(None)
"""Whoever can open the database is its operator: no role is checked here."""

_PAGE: Final = 1_000

_resources: Final[dict[str, ParticipantEngine]] = {}
"""Those of this process, by address. Connections are made anew after a fork."""

_makers: Final[dict[str, EmbeddedParticipant]] = {}
"""Those whose tables this process makes, by address: it has started a job with them."""

_senders: Final[set[str]] = set()
"""Addresses from which this process, and no fork of it, sends what is committed."""

after_fork(_senders.clear)

_EXTRAS: Final = {"confluent_kafka": "kafka", "stomp": "activemq"}
"""What is to be installed for a package, beside `postgres`."""

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class EmbeddedParticipant:
    """A participant without a service: `RemoteParticipant` has the promises.

    Picklable: a task opens the database itself. A database that does not answer is
    *unavailable*, and never a refusal. Tables are made by `set_up` alone, which the
    driver calls at the start of a job; without them every request is answered *not
    now*. No token is read.

    Raises:
        ConfigurationError: the address is wrong, or a package is not installed.
    """

    name: str
    url: str
    token: dataclasses.InitVar[str | None]
    timeout: float
    host: str = ""
    """The machine that has its file; empty for a database that is a server."""

    def __post_init__(self, token: str | None) -> None:
        try:
            address = read_address(self.url)
            object.__setattr__(self, "url", address.url)
            if self._resource(address).is_in_a_file:
                object.__setattr__(self, "host", socket.gethostname())
        except ConfigurationError as error:
            raise self._wrong(error) from None
        except ModuleNotFoundError as error:
            scheme = self.url.partition(":")[0]
            extra = _EXTRAS.get(str(error.name), "postgres")
            raise ConfigurationError(
                f"participant {self.name!r}: {scheme}: needs {error.name}: pip install "
                f"'tracing-2pc[{extra}]'"
            ) from None

    def _wrong(self, error: ConfigurationError) -> ConfigurationError:
        return ConfigurationError(
            f"participant {self.name!r}: {error}", participant=self.name
        )

    @property
    def is_local(self) -> bool:
        """Whether only processes of this machine reach it."""
        return bool(self.host)

    def set_up(self) -> None:
        """Make its tables and its topic, if they are not there; for a job's start.

        From now on this process also makes the tables later, where the database did not
        answer now, and exports the participant's gauges. Idempotent.

        Raises:
            ConfigurationError: with the setting or the SQL that cures it.
            ParticipantUnavailableError: the database does not answer.
        """

        def make(engine: ParticipantEngine) -> None:
            engine.open()
            engine.settle()

        _makers[self.url] = self
        observe_gauges(_read_gauges)
        self._look(make)

    def start(self) -> None:
        """Send from this process what waits after commits, until `rest`."""
        if not self._resource().sends:
            return
        _senders.add(self.url)
        with contextlib.suppress(ParticipantError, ConfigurationError):
            self._look(methodcaller("start"))

    def rest(self) -> None:
        """Send nothing more from this process, after what is under way."""
        _senders.discard(self.url)
        if self.url in _resources:
            _resources[self.url].rest()

    def waiting(self) -> int:
        """Count records that are committed and not sent yet."""
        if not self._resource().sends:
            return 0
        return self._look(lambda engine: engine.waiting())

    def gauges(self) -> Mapping[str, float]:
        """Measure it, by the names of the registry; nothing if it does not answer."""
        try:
            engine = self._resource()
            with answering_within(self.timeout), in_use(engine):
                return engine.gauges()
        except Exception:  # no database, no gauges
            logger.debug("gauges could not be read: %s", self.name, exc_info=True)
            return {}

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
        def ask(service: ParticipantService, step: Step) -> Answer:
            with contextlib.closing(body()) as stream:
                received = Body(stream, length, content.ARROW, digest)
                ref = BranchRef(branch, rows, digest)
                about = transaction, self.name, ref, received, storable_context()
                return service.prepare(_ANYBODY, step, *about, journal, name_rows or 0)

        return Vote(str(self._ask("prepare", transaction, ask).fields["vote"]))

    def commit(self, record: TransactionRecord) -> None:
        refs = [BranchRef(r.branch, r.rows, r.digest) for r in record.chosen(self.name)]
        order = dataclasses.replace(self._order(record), branches=tuple(refs))
        self._ask("commit", record.id, lambda s, step: s.commit(_ANYBODY, step, order))
        if self.url in _senders:  # it may not have been there when `start` was called
            self.start()

    def abort(self, record: TransactionRecord) -> None:
        order = self._order(record)
        self._ask("abort", record.id, lambda s, step: s.abort(_ANYBODY, step, order))

    def _order(self, record: TransactionRecord) -> Order:
        journal = record.journal_of(self.name)
        return Order(record.id, self.name, record.forgotten_through, journal=journal)

    def abort_branch(
        self,
        transaction: TransactionId,
        branch: BranchId,
        digest: str,
        journal: str | None = None,
    ) -> None:
        about = Order(transaction, self.name, branch=branch, digest=digest)
        order = dataclasses.replace(about, journal=journal)
        self._ask("abort", transaction, lambda s, step: s.abort(_ANYBODY, step, order))

    def resolve(
        self,
        transaction: TransactionId,
        outcome: Decision,
        reason: str,
        journal: str | None = None,
    ) -> None:
        order = Order(transaction, self.name, reason=reason, journal=journal)
        self._ask(
            "resolve",
            transaction,
            lambda s, step: s.resolve(_ANYBODY, step, order, Decision(outcome)),
        )

    def prepared(self, application: str | None = None) -> Listing:
        until = time.monotonic() + self.timeout
        branches: list[InDoubt] = []
        after, missing = 0, None
        while True:
            query = Query(application, after, _PAGE)
            page = self._look(methodcaller("list_open", query))
            branches += [
                InDoubt(id_, b.ref.branch, max(0.0, page.now - b.since), b.ref.rows, c)
                for id_, b, c in page.branches
            ]
            if page.next is None:
                break
            if time.monotonic() > until:
                missing = f"took over {self.timeout:g} s"
                break
            after = page.next
        return Listing(tuple(branches), missing, page.now)

    def show(self, transaction: TransactionId, journal: str | None = None) -> Shown:
        asked = transaction, self.name, journal
        answer = self._look(lambda engine: engine.show(*asked), transaction)
        fields = answer.fields
        if answer.refusal in (Refusal.UNKNOWN, Refusal.FORGOTTEN):
            other = fields.get("committed")
            committed = TransactionId.parse(other) if other else None
            return Shown(ParticipantState(str(answer.refusal)), committed=committed)
        self._raise_refusal(answer, transaction)
        held = [
            HeldBranch(
                BranchId.parse(branch["branch"]),
                BranchState(branch["state"]),
                *(branch[n] for n in ("rows", "digest", "prepared_at", "sealed_at")),
            )
            for branch in fields["branches"]
        ]
        state, holds = ParticipantState(str(answer.state)), Holds(**fields["holds"])
        by_hand = fields["resolved_by_hand"]
        return Shown(state, tuple(held), by_hand, fields["now"], holds)

    def identity(self) -> Identity:
        return self._look(lambda engine: engine.identity(None))

    def describe(self) -> ParticipantDescription:
        description = ParticipantDescription(self.name, self.url)
        try:
            listing = self.prepared()
            now = time.time()
            who = self._look(
                lambda engine: ParticipantService(engine, bool).whoami(_ANYBODY)
            )
            description = dataclasses.replace(
                description,
                role=who["role"],
                skew=None if listing.now is None else listing.now - now,
                in_doubt=len(listing.branches),
                missing=listing.missing,
                gauges=who["gauges"],
                identity=Identity(who["journal"], who["participants"]),
                pooled=who["pooled"],
                unfit=tuple(map(Unfit.parse, who["unfit"])),
                version=metadata.version("tracing-2pc"),
            )
            self._look(lambda engine: engine.ready())
        except (ConfigurationError, ParticipantError) as error:
            message = str(error).removeprefix(f"participant {self.name!r}: ")
            if description.identity is None:
                return dataclasses.replace(description, unreachable=message)
            return dataclasses.replace(description, unready=message)
        return description

    def quarantined(
        self,
        application: str | None = None,
        state: RequestState = RequestState.QUARANTINED,
        limit: int = 100,
        key: RequestKey | None = None,
    ) -> QuarantineListing:
        query = RequestQuery(application, key, state, (0.0, ""), limit + 1)
        page = self._outbox(methodcaller("list_requests", query))
        more = len(page.requests) > limit
        return QuarantineListing(tuple(page.requests[:limit]), page.now, more)

    def send_again(self, key: RequestKey, *, who: str, reason: str) -> RequestState:
        order = RequestOrder(key, self.name, who, reason)
        return self._outbox(lambda o: o.send_again(order), key.transaction)

    def drop_request(self, key: RequestKey, *, who: str, reason: str) -> RequestState:
        order = RequestOrder(key, self.name, who, reason)
        return self._outbox(lambda o: o.drop_request(order), key.transaction)

    def _outbox(
        self,
        ask: Callable[[KeepsRequests], T],
        transaction: TransactionId | None = None,
    ) -> T:
        def of(engine: ParticipantEngine) -> T:
            if isinstance(engine, KeepsRequests):
                return ask(engine)
            raise RefusalError(Refusal.UNKNOWN, "it has no outbox", state="unknown")

        return self._look(of, transaction)

    def _ask(
        self,
        phase: str,
        transaction: TransactionId,
        ask: Callable[[ParticipantService, Step], Answer],
    ) -> Answer:
        """Ask for a step of the protocol, in a span and measured as a service's."""
        about = {"tpc.request": phase, "tpc.participant": self.name}
        started, result = time.monotonic(), "unavailable"
        with client_span(f"POST /{phase}", about) as step:
            step.set("tpc.transaction.id", str(transaction))
            try:
                answer = self._look(
                    lambda engine: ask(ParticipantService(engine, bool), step),
                    transaction,
                    is_vote=phase == "prepare",
                )
                step.set("tpc.state", str(answer.state))
                self._raise_refusal(answer, transaction)
                result = "ok"
            except ParticipantRefusedError as error:
                step.set("tpc.state", error.state or "unknown")
                result = "refused"
                raise
            finally:
                seconds = time.monotonic() - started
                record_request(phase, self.name, result, seconds, get_current())
        return answer

    def _raise_refusal(self, answer: Answer, transaction: TransactionId) -> None:
        if answer.refusal is not None:
            state = str(answer.state)
            raise self._error(answer.refusal, answer.detail, state, transaction)

    def _look(
        self,
        ask: Callable[[ParticipantEngine], T],
        transaction: TransactionId | None = None,
        *,
        is_vote: bool = False,
    ) -> T:
        """Ask the resource, and turn what it raises into what a participant answers."""
        try:
            engine = self._resource()
            with answering_within(self.timeout), in_use(engine):
                if self.url not in _makers:
                    engine.find()
                return ask(engine)
        except RefusalError as error:
            about = error.refusal, str(error), error.state, transaction
            raise self._error(*about, is_vote=is_vote, rows=error.rows) from error
        except ConfigurationError as error:
            raise self._wrong(error) from error
        except sa.exc.DataError as error:
            logger.warning("not stored: %s", describe_error(error))
            text = "text of the request has a character that the database here lacks"
            raise self._error(Refusal.MALFORMED, text, None, transaction) from None
        except Exception as error:
            cause = describe_not_now(error)
            text = f"its database {cause or f'did not answer: {describe_error(error)}'}"
            if not isinstance(error, sa.exc.SQLAlchemyError | OSError):
                logger.exception(
                    "a request was not answered: participant=%s", self.name
                )
                text = f"it has a fault, see the log: {type(error).__name__}"
            raise self._error(Refusal.NOT_NOW, text, None, transaction) from error

    def _error(
        self,
        refusal: Refusal,
        detail: str,
        state: str | None,
        transaction: TransactionId | None,
        *,
        is_vote: bool = False,
        rows: Sequence[RejectedRow] = (),
    ) -> ParticipantError:
        kind: Callable[..., ParticipantError] = ParticipantRefusedError
        if rows:
            kind = partial(RejectedRowsError, rows)
        # Before the decision a wrong address is a no; after it, it is no answer.
        is_wrong = refusal is Refusal.MISDIRECTED and not is_vote
        if refusal in ASK_AGAIN or is_wrong:
            kind = ParticipantUnavailableError
        return kind(
            f"participant {self.name!r}: {detail} ({self.url})",
            refusal=refusal,
            state=state,
            transaction_id=None if transaction is None else str(transaction),
            participant=self.name,
        )

    def _resource(self, address: Address | None = None) -> ParticipantEngine:
        if self.host not in ("", socket.gethostname()):
            raise ConfigurationError(
                f"{self.url} is in a file of {self.host}, and this is "
                f"{socket.gethostname()}: on a cluster use postgresql:"
            )
        if self.url not in _resources:
            # No lock: a module that is imported here may make participants, too.
            resource = (address or read_address(self.url)).open()
            _resources.setdefault(self.url, resource)
        return _resources[self.url]


def _read_gauges() -> list[tuple[Mapping[str, float], Mapping[str, str]]]:
    """Read the gauges of this process's jobs; one that does not answer has none.

    Of several that have one name the greatest counts.
    """
    greatest: dict[str, dict[str, float]] = {}
    # One after the other: the last export is at the exit, where no thread starts.
    for participant in list(_makers.values()):
        gauges = greatest.setdefault(participant.name, {})
        for gauge, value in participant.gauges().items():
            gauges[gauge] = max(value, gauges.get(gauge, value))
    return [(gauges, {"participant": name}) for name, gauges in greatest.items()]
