"""Checks a run's stored state by the protocol: could any run of it have left this?

It reads the decision log, with what persons have signed, the journals of participants,
and spans, if there are any; it writes nothing and asks no process. Each contradiction
names a rule of ARCHITECTURE.md. Order is judged by records, and never by clocks of
different processes. A span or a journal that is missing proves nothing. It may be used
beside a run: what changes while it reads is no contradiction.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from tracing_2pc.core.errors import ConfigurationError, TwoPhaseError
from tracing_2pc.core.model import (
    ADOPTED,
    BranchId,
    TransactionId,
    TransactionRecord,
)
from tracing_2pc.core.settings import LOCK_WAIT
from tracing_2pc.core.states import FINAL, Decision, TransactionState, Vote
from tracing_2pc.embedded.addresses import is_address, read_address
from tracing_2pc.participant.journal.schema import Tables
from tracing_2pc.protocol.votes import check_votes
from tracing_2pc.store.engines.opening import open_database
from tracing_2pc.store.engines.sqlite import storage_faults
from tracing_2pc.store.engines.urls import database_url, display_url, missing_file
from tracing_2pc.store.kit import settled
from tracing_2pc.store.log import schema
from tracing_2pc.store.log.database import open_log

S = TransactionState
COMMITTED: Final = "committed"
ABORTED: Final = "aborted"
PREPARED: Final = "prepared"
_ENDS: Final = {Decision.COMMIT: COMMITTED, Decision.ABORT: ABORTED}
_STATES: Final = {
    None: {S.ACTIVE},
    Decision.COMMIT: {S.COMMITTING, S.COMMITTED, S.QUARANTINED, S.CONCLUDED},
    Decision.ABORT: {S.ABORTING, S.ABORTED, S.QUARANTINED, S.CONCLUDED},
}
_EXTERNAL: Final = "prepared_transactions"
"""Of such a journal *prepared* is a note that may have no branch: no evidence."""


class Contradiction(NamedTuple):
    """A state that no run of the protocol leaves.

    Args:
        transaction: `<application>.<batch>.<attempt>`.
        participant: of the journal that shows it; empty: the log alone, or a span.
        violation: the contradiction, in words.
        rule: of ARCHITECTURE.md.
    """

    transaction: str
    participant: str
    violation: str
    rule: str

    def __str__(self) -> str:
        """Describe it in one line."""
        who = f"{self.participant}: " if self.participant else ""
        return f"{self.transaction}: {who}{self.violation} (rule {self.rule})"


class Held(NamedTuple):
    """A branch in a journal."""

    state: str
    rows: int
    digest: str


@dataclasses.dataclass
class Journal:
    """One participant's records of one application."""

    application: str
    participant: str  # as the application calls it
    forgotten_through: int = -1  # nothing is kept at or below it
    # By transaction: committed or aborted.
    seals: dict[TransactionId, str] = dataclasses.field(default_factory=dict)
    # By transaction and branch.
    branches: dict[TransactionId, dict[BranchId, Held]] = dataclasses.field(
        default_factory=lambda: defaultdict(dict)
    )
    # Transactions that a person has ended there.
    by_hand: set[TransactionId] = dataclasses.field(default_factory=set)
    is_exact: bool = True  # what it calls prepared is so


@dataclasses.dataclass
class Log:
    """The records of a decision log."""

    # All of them; their checksums hold.
    records: Mapping[TransactionId, TransactionRecord]
    # By application.
    forgotten_through: Mapping[str, int] = dataclasses.field(default_factory=dict)
    # The same, as participants may know it: what is durable.
    durable: Mapping[str, int] = dataclasses.field(default_factory=dict)
    # The number of each run, by application and its id.
    runs: Mapping[tuple[str, str], int] = dataclasses.field(default_factory=dict)
    signed: frozenset[str] = frozenset()  # transactions that a person has decided about


def check_run(
    log: str,
    journals: Iterable[tuple[str, str]] = (),
    spans: Iterable[Mapping[str, Any]] = (),
) -> list[Contradiction]:
    """Return what no run of the protocol could have left; empty: some run explains it.

    Args:
        log: URL of the decision log, or `env:NAME`.
        journals: participants and the URL of the database that each has its journal in,
            or the participant's address, which names one journal there. Without a name:
            all journals there.
        spans: as `read_trace_file` and `Collector` give them.

    Raises:
        ConfigurationError: a URL is none, or there is no log or no journal there.
        DecisionLogError: the log cannot be read, or a record is damaged.
    """
    named = list(journals)

    def read_all(log: Log) -> list[Journal]:
        return [
            journal for name, url in named for journal in read_journals(url, name, log)
        ]

    # What is decided is in the log before it is in a journal, and what is acknowledged
    # is in a journal before: neither is taken for missing that came between.
    before = read_all(read_log(log))
    between = read_log(log)
    contradictions = examine(between, before)
    if contradictions and named:
        after = set(examine(between, read_all(between)))
        contradictions = [
            contradiction for contradiction in contradictions if contradiction in after
        ]
    return [*contradictions, *examine_spans(between, spans)]


# --- what is read --------------------------------------------------------------------


def read_log(url: str) -> Log:
    """Read all of a decision log, in one snapshot. Raises as `check_run`."""
    with (
        contextlib.closing(open_log(url, must_exist=True)) as log,
        log.snapshot() as change,
    ):
        records = change.load(sa.text("1 = 1"))
        ask = change.connection.execute
        applications = ask(sa.select(*settled(schema.application))).all()
        runs = ask(sa.select(*settled(schema.run))).all()
        audit = ask(sa.select(schema.audit.c.about)).scalars().all()
    below = {a.name: a.forgotten_through for a in applications}
    durable = {a.name: a.durable_forgotten_through for a in applications}
    # Of an application that was adopted none is durable until it begins a batch.
    adopted = {r.id.application for r in records if r.run == ADOPTED}
    durable |= {name: below[name] for name in adopted if durable[name] is None}
    return Log(
        {record.id: record for record in records},
        {name: -1 if to is None else to for name, to in below.items()},
        {name: -1 if to is None else to for name, to in durable.items()},
        {(r.application, r.run): r.sequence for r in runs},
        frozenset(audit),
    )


def read_journals(url: str, participant: str, log: Log) -> list[Journal]:
    """Read what the journals in a database have of the log's applications.

    Of one participant; of all if it has no name.

    Raises:
        ConfigurationError: not such a URL, or no journal is there.
    """
    place, only = _journal_at(url)
    database = open_database(place, "url", lock_wait=LOCK_WAIT)
    shown = display_url(database.url)
    if (missing := missing_file(database.url)) is not None:
        raise ConfigurationError(f"journal {participant}: there is no file {missing}")
    try:
        with contextlib.closing(database), database.read() as connection:
            tables, end = sa.inspect(connection).get_table_names(), "_tpc_schema"
            names = (t.removesuffix(end) for t in sorted(tables) if t.endswith(end))
            wanted = [name for name in names if only in (None, name)]
            journals = [
                journal for n in wanted for journal in _read_journal(connection, n)
            ]
    except sa.exc.SQLAlchemyError as error:
        cause = type(error).__name__
        raise TwoPhaseError(f"journal {participant} at {shown}: {cause}") from None
    if not wanted:
        raise ConfigurationError(f"journal {participant}: there is none at {shown}")
    known = [
        journal for journal in journals if journal.application in log.forgotten_through
    ]
    if not participant:
        return known
    mine = [journal for journal in known if journal.participant == participant]
    there = {journal.application for journal in mine}
    # An application that it should know, and does not: its journal has nothing.
    return mine + [
        Journal(application, participant)
        for application in sorted(log.forgotten_through.keys() - there)
    ]


def _journal_at(url: str) -> tuple[sa.URL, str | None]:
    """Return the database, and its only journal that is meant; None for any."""
    if not is_address(url):
        return database_url(url, "url"), None
    try:
        return read_address(url).open().journal_at
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"{url} needs {error.name}: install it") from None


def _read_journal(connection: sa.Connection, prefix: str) -> list[Journal]:
    tables = Tables("", prefix)
    ask = connection.execute
    kind = ask(sa.select(tables.identity.c.kind)).scalar()
    journals = {
        row.application: Journal(
            row.application,
            row.participant,
            -1 if row.forgotten_through is None else row.forgotten_through,
            is_exact=kind != _EXTERNAL,
        )
        for row in ask(sa.select(*settled(tables.application)))
    }
    t = tables.transaction.c
    columns = (t.application, t.batch, t.attempt, t.seal, t.resolved_because)
    for row in ask(sa.select(*columns)):
        if (journal := journals.get(row.application)) is not None:
            id_ = TransactionId(row.application, row.batch, row.attempt)
            if row.seal:
                journal.seals[id_] = row.seal
            if row.resolved_because is not None:
                journal.by_hand.add(id_)
    b = tables.branch.c
    task = (b.application, b.batch, b.attempt, b.partition, b.task_attempt)
    for *id_of, partition, task_attempt, state, count, digest in ask(
        sa.select(*task, b.state, b.rows, b.digest)
    ):
        if (journal := journals.get(id_of[0])) is not None:
            branch = BranchId(partition, task_attempt)
            held = Held(state, count, digest)
            journal.branches[TransactionId(*id_of)][branch] = held
    return [*journals.values()]


def storage_faults_at(reference: str, name: str) -> list[str]:
    """Read a SQLite file whole, and return its faults: a damaged index hides records.

    None for a file that is not there, or for a server, which checks its own.

    Raises:
        ConfigurationError: not a URL of a database, or `env:NAME` of one.
    """
    url, _ = _journal_at(reference)
    if url.get_backend_name() != "sqlite" or missing_file(url) is not None:
        return []
    with contextlib.closing(open_database(url, name, lock_wait=LOCK_WAIT)) as database:
        return storage_faults(database)


# --- what is held against what -------------------------------------------------------


def examine(log: Log, journals: Iterable[Journal]) -> list[Contradiction]:
    """Hold records against each other, and each journal against them."""
    contradictions = [*_in_log(log)]
    for journal in journals:
        contradictions += _in_journal(log, journal)
    return contradictions


def _in_log(log: Log) -> Iterator[Contradiction]:
    by_batch: dict[tuple[str, int], list[TransactionRecord]] = defaultdict(list)
    for record in log.records.values():
        by_batch[record.id.application, record.id.batch].append(record)
        yield from _in_record(log, record)
    newest = {application: max(b for a, b in by_batch if a == application)
              for application, _ in by_batch}  # fmt: skip
    for (application, batch), attempts in by_batch.items():
        attempts.sort(key=lambda record: record.id.attempt)
        committed = [r for r in attempts if r.decision is Decision.COMMIT]
        for other in committed[1:]:
            violation = (
                f"is decided commit, and so is {committed[0].id} of the same batch"
            )
            yield _at_log(other, violation, "18")
        for record in committed:
            if record is not attempts[-1] and record is committed[0]:
                violation = f"is decided commit, and {attempts[-1].id} is newer"
                yield _at_log(record, violation, "14")
        for record in attempts:
            is_last = record is attempts[-1] and batch == newest[application]
            if record.state is S.ACTIVE and not is_last:
                yield _at_log(record, "is undecided, and a newer one has begun", "7")
        numbers = [log.runs.get((application, record.run), -1) for record in attempts]
        for record, number, after in zip(attempts, numbers, numbers[1:], strict=False):
            if -1 < after < number:
                yield _at_log(record, "was followed by one of an older run", "7")


def _in_record(log: Log, record: TransactionRecord) -> Iterator[Contradiction]:
    """Hold one record against itself: its order is begin, votes, decide, finish."""
    application = record.id.application
    if record.state not in _STATES[record.decision]:
        violation = f"is {record.state}, and decided {record.decision}"
        yield _at_log(record, violation, "2")
    if record.decision is None and record.acknowledged:
        who = ", ".join(sorted(record.acknowledged))
        yield _at_log(record, f"is acknowledged by {who}, and undecided", "2")
    if record.pending and record.state in (S.COMMITTED, S.ABORTED):
        who = ", ".join(record.pending)
        violation = f"is finished, and {who} has not acknowledged"
        yield _at_log(record, violation, "11")
    if record.state in FINAL and record.finished is None:
        yield _at_log(record, f"is {record.state}, and was never finished", "11")
    if record.id.batch <= log.forgotten_through.get(application, -1):
        through = log.forgotten_through[application]
        violation = f"is on record, and forgotten_through is {through}"
        yield _at_log(record, violation, "17")
    # Receipts of an earlier commit are dropped when a later one is finished.
    is_kept = record.receipts or record.state is S.COMMITTING
    if record.decision is Decision.COMMIT and is_kept and record.run != ADOPTED:
        try:
            check_votes(record, record.receipts)
        except TwoPhaseError as error:
            violation = f"is decided commit: {error}"
            yield _at_log(record, violation, "1")


def _at_log(record: TransactionRecord, violation: str, rule: str) -> Contradiction:
    return Contradiction(str(record.id), "", violation, rule)


def _in_journal(log: Log, journal: Journal) -> Iterator[Contradiction]:
    def says(id_: TransactionId, violation: str, rule: str) -> Contradiction:
        return Contradiction(str(id_), journal.participant, violation, rule)

    application = journal.application
    durable = log.durable.get(application, -1)
    if journal.forgotten_through > durable:
        violation = (
            f"its forgotten_through is {journal.forgotten_through}, the log's {durable}"
        )
        yield Contradiction(application, journal.participant, violation, "19")
    committed: dict[int, TransactionId] = {}
    for id_ in sorted({*journal.seals, *journal.branches}):
        if str(id_) in log.signed or id_ in journal.by_hand:
            continue  # a person has decided it
        for violation, rule in _of_transaction(log, journal, id_):
            yield says(id_, violation, rule)
        is_committed = journal.seals.get(id_) == COMMITTED
        if is_committed and (other := committed.setdefault(id_.batch, id_)) != id_:
            yield says(id_, f"committed, and so is {other} of its batch", "18")
    for record in log.records.values():
        if record.id.application != application or str(record.id) in log.signed:
            continue
        if record.id in journal.by_hand or record.id.batch <= journal.forgotten_through:
            continue
        for violation, rule in _of_record(journal, record):
            yield says(record.id, violation, rule)


def _of_transaction(
    log: Log, journal: Journal, id_: TransactionId
) -> Iterator[tuple[str, str]]:
    """Hold what a journal has of a transaction against the log."""
    seal, branches = journal.seals.get(id_), journal.branches.get(id_, {})
    states = {held.state for held in branches.values()}
    if seal is None and COMMITTED in states:
        yield "a branch is committed, and the transaction is not sealed", "16"
    if seal == ABORTED and COMMITTED in states:
        yield "a branch is committed, and the transaction is sealed aborted", "15"
    if seal is not None and PREPARED in states and journal.is_exact:
        yield f"a branch is prepared, and the transaction is sealed {seal}", "20"
    record = log.records.get(id_)
    if record is None:
        if id_.batch > log.forgotten_through[id_.application]:
            yield from _of_unknown(log, journal, id_)
        return
    if journal.participant not in record.participants and branches:
        yield "it has a branch, and is not on record as a participant", "1"
    if seal is None:
        return
    if record.decision is None:
        rule = "2" if seal == COMMITTED else "8"
        yield f"sealed {seal}, and the log has not decided", rule
    elif seal != _ENDS[record.decision]:
        rule = "15" if seal == COMMITTED else "8"
        yield f"sealed {seal}, and decided is {record.decision}", rule
    if seal == COMMITTED and record.decision is Decision.COMMIT:
        yield from _of_chosen(journal, record, branches)


def _of_unknown(
    log: Log, journal: Journal, id_: TransactionId
) -> Iterator[tuple[str, str]]:
    adopted = (
        record.id.batch == id_.batch and record.id.attempt >= id_.attempt
        for record in log.records.values()
        if record.run == ADOPTED and record.id.application == id_.application
    )
    held = journal.branches.get(id_, {}).values()
    if any(adopted):
        return
    if journal.seals.get(id_) == COMMITTED:
        yield "sealed committed, and the log has no record of it", "2"
    elif journal.is_exact and PREPARED in {branch.state for branch in held}:
        yield "a branch is prepared, and the log has no record of it", "3"


def _of_chosen(
    journal: Journal, record: TransactionRecord, branches: Mapping[BranchId, Held]
) -> Iterator[tuple[str, str]]:
    """Hold what is committed against what the decision has chosen."""
    if not record.receipts:
        return
    chosen = {r.branch: r for r in record.chosen(journal.participant)}
    for branch, held in branches.items():
        if held.state == COMMITTED and branch not in chosen:
            yield f"branch {branch} is committed, and was not chosen", "4"
    for branch, receipt in chosen.items():
        there = branches.get(branch)
        if there is None or (there.state == ABORTED):
            state = there.state if there else "not there"
            yield f"branch {branch} was chosen, and is {state}", "5"
        elif (there.rows, there.digest) != (receipt.rows, receipt.digest):
            yield f"branch {branch} has other content than its vote", "4"


def _of_record(
    journal: Journal, record: TransactionRecord
) -> Iterator[tuple[str, str]]:
    """Hold what the log knows of a participant against its journal."""
    name, id_ = journal.participant, record.id
    if name not in record.participants or name in record.given_up:
        return
    seal = journal.seals.get(id_)
    if name in record.acknowledged and seal is None and record.run != ADOPTED:
        violation = (
            f"it has acknowledged {record.decision}, and its journal has no seal"
        )
        yield violation, "5"
    if seal is not None or record.decision is not Decision.COMMIT:
        return
    branches = journal.branches.get(id_, {})
    for receipt in record.receipts:
        if (receipt.participant, receipt.vote) != (name, Vote.COMMIT):
            continue
        there = branches.get(receipt.branch)
        if there is None or there.state == ABORTED:
            state = there.state if there else "not there"
            yield f"branch {receipt.branch} has voted commit, and is {state}", "13"


# --- spans ---------------------------------------------------------------------------

_ORDER: Final = (
    ("tpc.begin", "tpc.decide", "3"),
    ("tpc.decide", "tpc.deliver", "2"),
    ("tpc.decide", "commit", "2"),
)
"""What ends before what begins, in one process: of which rule."""


def examine_spans(
    log: Log, spans: Iterable[Mapping[str, Any]]
) -> Iterator[Contradiction]:
    """Hold spans against each other, of one process alone, and against the log.

    A clock that was set back between two spans of a process looks the same.
    """
    kinds: dict[tuple[str, Any], dict[str, list[Any]]] = defaultdict(
        lambda: defaultdict(list)
    )
    decided: dict[str, set[str]] = defaultdict(set)
    for span in spans:
        attributes = span["attributes"]
        id_ = str(attributes.get("tpc.transaction.id", ""))
        if not id_:
            continue
        name, decision = span["name"], attributes.get("tpc.decision")
        if attributes.get("tpc.replay"):
            continue  # begun again, after it was decided
        if name in ("tpc.decide", "tpc.deliver") and decision:
            decided[id_].add(str(decision))
        # What a request to a participant is, in any transport.
        kind = attributes.get("tpc.request") if span["kind"] == "CLIENT" else name
        kinds[id_, span["instance"]][str(kind)].append(span)
    for (id_, _), spans_of_kind in kinds.items():
        for first, then, rule in _ORDER:
            if spans_of_kind[first] and spans_of_kind[then]:
                ends = min(span["end"] for span in spans_of_kind[first])
                if min(span["start"] for span in spans_of_kind[then]) < ends:
                    violation = f"a span {then} began before {first} had ended"
                    yield Contradiction(id_, "", violation, rule)
    for id_, decisions in decided.items():
        if str(id_) in log.signed:
            continue
        record = log.records.get(TransactionId.parse(id_))
        if record is not None and record.decision is not None:
            decisions.add(str(record.decision))
        if len(decisions) > 1:
            violation = "spans and log have both decisions, commit and abort"
            yield Contradiction(id_, "", violation, "15")
