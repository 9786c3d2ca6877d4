"""The records of the protocol: small, immutable, free of I/O."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, Final, NamedTuple, NoReturn, TypedDict

from tracing_2pc.core.addresses import key_of
from tracing_2pc.core.states import (
    BranchState,
    Decision,
    ParticipantState,
    RelayTrouble,
    RequestState,
    TransactionState,
    UnfitKind,
    Vote,
)

MOST_LINKS: Final = 32
"""Contexts of a commit's rows that its record keeps, and its root links to."""

MAX_BRANCHES: Final = 20_000
"""A commit names at most so many branches to one participant: its body has a limit."""


class Carrier(dict[str, str]):
    """A trace context at rest: header names to values. It does not change.

    Pickled it is the headers and nothing else.
    """

    parsed: Any = None
    """What `tracing/propagation.py` has read of the headers, so that it reads once."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Carrier, (dict(self),)

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("a Carrier does not change: make another one")

    __setitem__ = __delitem__ = __ior__ = _refuse
    update = setdefault = pop = popitem = clear = _refuse

    @staticmethod
    @functools.lru_cache(256)
    def from_json(text: str) -> Carrier:
        """Read what is stored; the same text is the same object.

        Raises:
            ValueError, TypeError: it is no carrier.
        """
        return Carrier(json.loads(text))


class Facts(TypedDict, total=False):
    """Further facts on record of a transaction from its begin on, by the field's name.

    The protocol stores it and reads none of it.
    """

    root_link: str
    root_start: int
    root_resource: str
    launch_digest: str
    launch_namespace: str
    launch_repository: str
    launch_builder: str


class Root(NamedTuple):
    """A reserved root span: its ids, and the content of its later export.

    Both are empty where nothing records spans.
    """

    carrier: Carrier
    facts: Facts


_APPLICATION: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_ORDINAL: Final = r"(0|[1-9][0-9]{0,17})"
_TRANSACTION: Final = re.compile(
    rf"([a-z0-9][a-z0-9-]{{0,39}})\.{_ORDINAL}\.([1-9][0-9]{{0,8}})"
)
_BRANCH: Final = re.compile(rf"{_ORDINAL}\.{_ORDINAL}")
_JOURNAL: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_REQUEST: Final = re.compile(rf"(.+\..+\..+)\.(.+\..+)\.{_ORDINAL}")


def check_application(name: str) -> str:
    """Return the name of an application, or raise `ValueError` saying what is wrong."""
    if not _APPLICATION.fullmatch(name):
        raise ValueError(
            f"application {name[:60]!r}: use 1 to 40 lower-case letters, digits and "
            "dashes, starting with a letter or digit"
        )
    return name


def check_journal(text: str) -> str:
    """Return the id of a participant's journal, or raise `ValueError`."""
    if not _JOURNAL.fullmatch(text):
        raise ValueError("expected 1 to 64 letters, digits, dashes and underscores")
    return text


def writes_of(application: str) -> str:
    """Return what is on record as the query where a caller counts the batches.

    So no stream goes on where these writes have been, or the other way.
    """
    return f"writes of {application}"


ADOPTED: Final = "adopted"
"""The run of a record that was made of what participants hold: its log was lost."""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class TransactionId:
    """One try to apply one micro-batch everywhere: `<application>.<batch>.<attempt>`.

    There is one spelling: ASCII digits without leading zeros, attempt from 1. An id
    is never used twice (rule 3).
    """

    application: str
    batch: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.application}.{self.batch}.{self.attempt}"

    @classmethod
    def parse(cls, text: str) -> TransactionId:
        """Read an id; `ValueError` if it is not in its one spelling."""
        if not (match := _TRANSACTION.fullmatch(text)):
            raise ValueError(
                f"transaction id {text[:80]!r}: expected <application>.<batch>."
                "<attempt>, digits without leading zeros, attempt from 1"
            )
        return cls(match[1], int(match[2]), int(match[3]))


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class BranchId:
    """What one task attempt wrote: `<partition>.<task attempt>`.

    The task attempt is Spark's `taskAttemptId`, unique in a Spark application, so
    retries and speculative twins never share a branch.
    """

    partition: int
    task_attempt: int

    def __str__(self) -> str:
        return f"{self.partition}.{self.task_attempt}"

    @classmethod
    def parse(cls, text: str) -> BranchId:
        """Read an id; `ValueError` if it is not in its one spelling."""
        if not (match := _BRANCH.fullmatch(text)):
            raise ValueError(
                f"branch {text[:80]!r}: expected <partition>.<task attempt>, "
                "digits without leading zeros"
            )
        return cls(int(match[1]), int(match[2]))


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class RequestKey:
    """One request of an outbox: `<transaction>.<branch>.<row>`.

    It is the request's `Idempotency-Key`: the same however often it is sent.
    """

    transaction: TransactionId
    branch: BranchId
    row: int

    def __str__(self) -> str:
        return f"{self.transaction}.{self.branch}.{self.row}"

    @property
    def batch(self) -> int:
        """The number of its batch, which rises: fit for an external version."""
        return self.transaction.batch

    @classmethod
    def parse(cls, text: str) -> RequestKey:
        """Read a key; `ValueError` if it is not in its one spelling."""
        if not (match := _REQUEST.fullmatch(text)):
            raise ValueError(
                f"request {text[:120]!r}: expected <application>.<batch>.<attempt>."
                "<partition>.<task attempt>.<row>, digits without leading zeros"
            )
        transaction, branch = map(str, match.group(1, 2))
        return cls(
            TransactionId.parse(transaction), BranchId.parse(branch), int(match[3])
        )


class JournalAt(NamedTuple):
    """The id of a participant's journal, and the address at which it gave that."""

    id: str
    url: str  # without secrets


@dataclasses.dataclass(frozen=True, slots=True)
class BranchContext:
    """The argument of a sink's `begin`: all that it needs to name its writes.

    `stopping` is called several times a second while a prepare is waited for; True ends
    the wait, and with it the branch. Spark kills its tasks instead.
    """

    transaction_id: TransactionId
    branch: BranchId
    participants: tuple[str, ...]
    carrier: Carrier
    stopping: Callable[[], bool] = bool  # bool() is False: never
    # By participant: a request for another journal than that is refused there.
    journals: Mapping[str, JournalAt] = dataclasses.field(default_factory=dict)
    # Rows at most that may be named as rejected (`RejectedRowsError`); None where a
    # refusal is of the whole branch, whatever it names.
    rejects_at_most: int | None = None
    rewrite: int = 0  # how often its task has written its rows before


@dataclasses.dataclass(frozen=True, slots=True)
class RejectedRow:
    """A row that a participant cannot keep, without any value of it.

    Args:
        row: its number among those that the participant was given, from 0.
        column: of the value at fault, or columns, as in `a, b`; empty where there is
            none.
        reason: in a few words, such as the constraint's kind and name.
        participant: its name; a sink of your own may leave it empty.
        is_peers: it conflicts with a row that another task of the same transaction has
            prepared.
    """

    row: int
    column: str
    reason: str
    participant: str = ""
    is_peers: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Receipt:
    """The vote of one participant about one branch, as its task returns it."""

    branch: BranchId
    participant: str
    rows: int
    digest: str  # as in `Content-Digest`; empty where a sink has none
    vote: Vote
    handle: Any = None  # what a hand-written sink's `commit` needs: plain JSON
    reason: str = ""  # of a vote to abort
    links: tuple[Carrier, ...] = ()  # that the branch's rows came with

    def to_json(self) -> str:
        """Write it as one JSON object, for the way from a task to the driver."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return json.dumps({**fields, "branch": str(self.branch)})

    @classmethod
    def from_json(cls, text: str) -> Receipt:
        """Read what `to_json` wrote."""
        fields = json.loads(text)
        fields["branch"] = BranchId.parse(fields["branch"])
        fields["vote"] = Vote(fields["vote"])
        fields["links"] = tuple(map(Carrier, fields["links"]))
        return cls(**fields)


def branch_receipts(
    branch: BranchId,
    rows: int,
    digest: str,
    votes: Mapping[str, Vote],
    handle: Any = None,
) -> tuple[Receipt, ...]:
    """Return one receipt per participant of a branch; `votes` is by participant."""
    return tuple(
        Receipt(branch, name, rows, digest, vote, handle)
        for name, vote in votes.items()
    )


def count_rows(receipts: Iterable[Receipt], rejects: str | None = None) -> int:
    """Return the records in all branches; several participants receive the same.

    Those that the participant for `rejects` has received are not among them.
    """
    written = (r for r in receipts if r.participant != rejects)
    return sum({receipt.branch: receipt.rows for receipt in written}.values())


def count_rejected(receipts: Iterable[Receipt], rejects: str | None) -> int:
    """Count the rejected records: those in the branches of their participant."""
    return sum(r.rows for r in receipts if r.participant == rejects)


def carrier_from_json(text: str) -> Carrier:
    """Read a stored trace context. An unreadable one is only not linked."""
    try:
        return Carrier.from_json(text)
    except (TypeError, ValueError):
        return Carrier()


def trace_id_of(carrier: Carrier) -> str | None:
    """Return a carrier's trace, as W3C writes it; None where nothing was traced."""
    return _ids_of(carrier)[0] or None


def log_fields(transaction: TransactionId, carrier: Carrier) -> dict[str, str]:
    """Return a transaction's ids for a log line outside of its spans, as `extra`."""
    trace_id, span_id = _ids_of(carrier)
    fields = {"trace_id": trace_id, "span_id": span_id}
    return {"tpc_transaction_id": str(transaction), **fields}


def _ids_of(carrier: Carrier) -> tuple[str, str]:
    """Return trace and span of a carrier; both empty where nothing was traced."""
    parts = carrier.get("traceparent", "").split("-")
    return (parts[1], parts[2]) if len(parts) == 4 else ("", "")


def way_back(batch: int) -> str:
    """Write how a stream goes back to a batch that it has passed."""
    return (
        f"stop the query, and let the callback's errors pass; remove commits/{batch} "
        f"and all above {batch} from commits and offsets of its checkpoint; start it"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class TransactionRecord:
    """The decision log's record of one transaction.

    Times are Unix seconds by the clock of their writer, except `deadline`: that is by
    the log's clock, and only the log judges whether it has passed. `newly_decided` is
    not in the log: the call that returned this record is the one that made the
    decision, so that each is counted once. Nor is `recovering`: the process that
    delivers it found it in the log, and did not ask for the decision itself.
    """

    id: TransactionId
    run: str
    state: TransactionState
    decision: Decision | None
    participants: tuple[str, ...]
    acknowledged: frozenset[str]
    carrier: Carrier
    started: float
    decided: float | None = None
    finished: float | None = None
    receipts: tuple[Receipt, ...] = ()  # kept until a later batch is committed
    rows: int = 0  # in their branches; kept as long as the record
    forgotten_through: int | None = None  # as durable: participants may be told it
    timeout: float = 0.0  # as the job set it, in seconds; 0 and no deadline mean none
    deadline: float | None = None
    own_sinks: frozenset[str] = frozenset()  # participants that only the job can reach
    given_up: frozenset[str] = frozenset()
    cause: str | None = None  # of an abort
    detail: str | None = None  # of that cause: the step, and the answer or error there
    reason: str | None = None  # why it was quarantined, if it ever was
    passed_by: int | None = None  # a batch of a stream that was refused because of it
    previous: str | None = None  # traceparent of the attempt before it at its batch
    links: tuple[Carrier, ...] = ()  # contexts that a commit's rows came with
    # By participant; without those whose journal was not known.
    journals: Mapping[str, JournalAt] = dataclasses.field(default_factory=dict)
    # Of its root span: the traceparent that was current when it was reserved, its start
    # in Unix nanoseconds, and the resource of its process, as JSON.
    root_link: str | None = None
    root_start: int | None = None
    root_resource: str | None = None
    # The participant that keeps the rows which others refused, and how many they were.
    rejects: str | None = None
    rejected: int = 0
    # Of a launch: the digest of its file, and where it makes what an abort has to find.
    # Of an image that it builds, also by what: `command` or `task`.
    launch_digest: str | None = None
    launch_namespace: str | None = None
    launch_repository: str | None = None
    launch_builder: str | None = None
    # In vain, at the participant that took most of them.
    tries: int = dataclasses.field(default=0, compare=False)
    newly_decided: bool = dataclasses.field(default=False, compare=False)
    recovering: bool = dataclasses.field(default=False, compare=False)

    @property
    def pending(self) -> tuple[str, ...]:
        """Participants that are to acknowledge the decision, and have not yet."""
        done = self.acknowledged | self.given_up
        return tuple(p for p in self.participants if p not in done)

    @property
    def abandoned(self) -> tuple[str, ...]:
        """Participants that were given up, and that never acknowledged."""
        lost = self.given_up - self.acknowledged
        return tuple(p for p in self.participants if p in lost)

    @property
    def is_launch(self) -> bool:
        """Whether a launch began it: its facts are all that its sinks need."""
        return self.launch_namespace is not None

    @property
    def job_only(self) -> frozenset[str]:
        """Sinks that only the job can tell the decision."""
        return frozenset() if self.is_launch else self.own_sinks

    @property
    def trace_id(self) -> str | None:
        """Its trace, as W3C writes it; None where nothing was traced."""
        return trace_id_of(self.carrier)

    @property
    def log_fields(self) -> dict[str, str]:
        """The `extra` of a log line outside of a span: it belongs to the root."""
        return log_fields(self.id, self.carrier)

    def chosen(self, participant: str) -> tuple[Receipt, ...]:
        """Return the receipts that a commit names to this participant."""
        # Rule 4: commit names the chosen branches; the participant drops the others.
        own = (r for r in self.receipts if r.participant == participant)
        return tuple(r for r in own if r.vote is Vote.COMMIT)

    def context_of(
        self,
        branch: BranchId,
        participants: tuple[str, ...] | None = None,
        stopping: Callable[[], bool] = bool,
    ) -> BranchContext:
        """Return a branch's context for a sink: for all participants, or for some."""
        names = self.participants if participants is None else participants
        return BranchContext(
            self.id, branch, names, self.carrier, stopping, self.journals
        )

    def address_of(self, participant: str) -> str | None:
        """Return where the job reaches a participant; None if it is not on record."""
        known = self.journals.get(participant)
        return known.url if known else None

    def journal_of(self, participant: str) -> str | None:
        """Return the id of a participant's journal; None if it is not on record."""
        known = self.journals.get(participant)
        return known.id if known else None


@dataclasses.dataclass(frozen=True, slots=True)
class DeliveryRecord:
    """How far a decision has got with one participant; times are Unix seconds."""

    participant: str
    acknowledged: float | None = None
    retries: int = 0  # tries that failed
    retry_at: float | None = None  # at the latest; None: no further try is planned
    error: str | None = None  # what came last instead of an acknowledgement, in short
    own_sink: bool = False  # only the job can reach it
    untold: str | None = None  # why part of it was not told; it counts as acknowledged
    given_up: float | None = None  # when it was said that it will never acknowledge

    @property
    def pending(self) -> bool:
        """Whether an acknowledgement is waited for."""
        return self.acknowledged is None and self.given_up is None


@dataclasses.dataclass(frozen=True, slots=True)
class BeginResult:
    """The result of `DecisionLog.begin`."""

    record: TransactionRecord  # to write, or, in a replay, the one already decided
    replay: bool  # the batch is decided commit: deliver again, write nothing
    # Undecided attempts that this begin decided abort; where an attempt is joined,
    # those that still have to be told so.
    superseded: tuple[TransactionRecord, ...] = ()
    # The log has not known the run before, which is so once in the life of a run.
    new_run: bool = dataclasses.field(default=False, compare=False)


@dataclasses.dataclass(frozen=True, slots=True)
class InDoubt:
    """A branch in a participant's list: prepared, its decision not yet known there."""

    transaction: TransactionId
    branch: BranchId
    age: float  # seconds, by the participant's clock
    rows: int
    carrier: Carrier


@dataclasses.dataclass(frozen=True, slots=True)
class Listing:
    """A participant's prepared branches, oldest first."""

    branches: tuple[InDoubt, ...]  # those that could be read
    missing: str | None = None  # why there may be more; None if these are all
    now: float | None = None  # its clock in Unix seconds; None if it did not say
    only: str | None = None  # the one application that our token shows; None for all

    @property
    def complete(self) -> bool:
        """Whether the list is complete."""
        return self.missing is None

    def is_blind_to(self, application: str) -> bool:
        """Whether our token does not let us see what is of this application."""
        return self.only not in (None, application)


@dataclasses.dataclass(frozen=True, slots=True)
class QuarantinedRequest:
    """A request that an outbox's partner did not take, or that a person has dropped.

    Times are Unix seconds by the participant's clock.
    """

    key: RequestKey
    state: RequestState
    status: int  # the partner's answer; 0 for none
    since: float  # when it was quarantined
    body: str  # its beginning
    length: int  # of the whole body, in characters
    again: int  # how often a person has had it sent again
    dropped_at: float | None = None
    who: str | None = None  # dropped it
    reason: str | None = None
    trouble: RelayTrouble | None = None
    """Of a relay: it stands for its whole transaction, and its body says why."""
    answer: str | None = None
    """The beginning of what the partner answered, or why nothing came: foreign text.

    None where it said nothing, or an older release asked it.
    """


@dataclasses.dataclass(frozen=True, slots=True)
class QuarantineListing:
    """The requests in an outbox's quarantine, oldest first."""

    requests: tuple[QuarantinedRequest, ...]
    now: float  # the participant's clock
    more: bool = False  # than these


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """Which participant it is."""

    journal: str  # an id of its own, made with its journal
    participants: Mapping[str, str]  # its name, by application, as far as we may see


class Unfit(NamedTuple):
    """A misfit of something that a participant depends on, and its cure."""

    what: str
    cure: str
    kind: UnfitKind = UnfitKind.SETTING
    application: str = ""  # whose; empty for all

    @classmethod
    def parse(cls, words: Sequence[str]) -> Unfit:
        """Read it as it is sent; an earlier release sends the first two words."""
        problem, cure, *more = words
        kind, application = [*more, "", ""][:2]
        known = kind if kind in tuple(UnfitKind) else UnfitKind.SETTING
        return cls(problem, cure, UnfitKind(known), application)


@dataclasses.dataclass(frozen=True, slots=True)
class ParticipantDescription:
    """One participant's state at one time, and the rights of our token there."""

    participant: str
    url: str
    unreachable: str | None = None  # why it gave no answer; nothing below is known then
    unready: str | None = None  # what it answered instead of being ready
    refused: str | None = None  # why our token was not taken, or could not be sent
    sent: bool = True  # a token was sent; False where there is none that could be
    role: str | None = None  # of our token; *anybody* where no token is asked for
    skew: float | None = None  # seconds that its clock is ahead of ours, if it told
    in_doubt: int = 0  # branches that are prepared there
    missing: str | None = None  # why there may be more of them
    only: str | None = None  # the one application of our token; None for all
    gauges: Mapping[str, float] = dataclasses.field(  # none for a job's token
        default_factory=dict
    )
    identity: Identity | None = None
    pooled: bool = False  # a pooler gives its next transaction another session
    unfit: tuple[Unfit, ...] = ()
    version: str | None = None  # of tracing_2pc; None if it did not say
    answers: bool = True  # False: by its nature it takes part only, and cannot be asked

    @property
    def role_of_token(self) -> str:
        """The role of our token there, or why there is none."""
        if self.role is not None:
            return self.role
        if not self.sent:
            return "none was sent"
        return "refused" if self.refused else "not known"


def find_misdirected(
    identities: Mapping[str, Identity], applications: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Yield each participant whose address leads to another one, and the evidence.

    By the keys of `core.addresses.key_of`: two applications may share a participant,
    and one of them calls it by an address of its own.
    """
    names: dict[tuple[str, str], str] = {}
    for key, identity in identities.items():
        own, _, name = key.rpartition("/")
        other = names.setdefault((own, identity.journal), key)
        if other != key:
            yield key, f"the addresses of {other!r} and {key!r} lead to one service"
        for application, called in identity.participants.items():
            is_its = key_of(identities, application, name) == key
            if application in applications and called != name and is_its:
                evidence = f"the address of {key!r} leads to {called!r} of application"
                yield key, f"{evidence} {application}"


@dataclasses.dataclass(frozen=True, slots=True)
class HeldBranch:
    """A branch as a participant shows it; times by the participant's clock."""

    branch: BranchId
    state: BranchState
    rows: int
    digest: str
    prepared_at: float | None = None
    sealed_at: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Holds:
    """The resources that a transaction keeps busy at a participant while in doubt.

    None where nothing is held back so. VACUUM cleans up nothing younger than `horizon`.
    """

    rows: int = 0  # prepared, and not visible
    slots: int | None = None  # of `max_prepared_transactions`
    locks: int | None = None  # of prepared transactions
    horizon: int | None = None  # age of the oldest, in transactions


@dataclasses.dataclass(frozen=True, slots=True)
class Shown:
    """A participant's answer about one transaction; *unknown* is one, too."""

    state: ParticipantState
    branches: tuple[HeldBranch, ...] = ()  # none where it is unknown or forgotten
    resolved_by_hand: bool = False  # a person decided it there
    now: float | None = None  # its clock in Unix seconds; None if it did not say
    holds: Holds = Holds()
    committed: TransactionId | None = None  # of an unknown one: its batch's there
