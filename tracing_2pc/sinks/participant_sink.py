"""The sink that writes to participants: each branch encoded once, sent to all."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

from tracing_2pc.core.errors import (
    ConfigurationError,
    ParticipantError,
    ParticipantRefusedError,
    ParticipantUnavailableError,
    RejectedRowsError,
)
from tracing_2pc.core.failpoints import failpoint
from tracing_2pc.core.model import (
    BranchContext,
    Identity,
    JournalAt,
    Receipt,
    TransactionRecord,
    branch_receipts,
    find_misdirected,
)
from tracing_2pc.core.ports import Step, SystemClock
from tracing_2pc.core.remote_participant import (
    Embedded,
    RemoteParticipant,
    open_participant,
)
from tracing_2pc.core.settings import check_name, check_url, is_reference
from tracing_2pc.core.states import OF_ROWS, Refusal, Vote
from tracing_2pc.protocol.fan_out import ask_at_once
from tracing_2pc.protocol.retry import PREPARE_SECONDS, RetryPolicy
from tracing_2pc.sinks.base import asking, gather, read_only
from tracing_2pc.sinks.spool import Spool
from tracing_2pc.tracing.decorator.traced_sink import traced_sink
from tracing_2pc.tracing.spans import span

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)


@dataclasses.dataclass(eq=False)
class _Handle:
    """A branch being written; it never leaves its task."""

    context: BranchContext
    spool: Spool
    schema: pa.Schema | None = None
    writer: pa.ipc.RecordBatchStreamWriter | None = None
    rows: int = 0
    digest: str | None = None
    """Of the sent branch; None while none was sent."""


@traced_sink
class ParticipantSink:
    """Write to named services, in one transaction.

    Args:
        participants: name to base URL. Names are a closed set: they become labels.
        token: reference to the job's token, `env:NAME` or `file:PATH`, read in each
            process when it is first needed. The driver's environment does not reach
            executors on other hosts: use `file:` there. None for participants that
            run with `insecure=True`.
        timeout: seconds to connect to a participant, and for each read.

    Raises:
        ConfigurationError: a bad name or URL, or a token instead of a reference.
    """

    driver_path = True

    def __init__(
        self,
        participants: Mapping[str, str],
        *,
        token: str | None = "env:TPC_TOKEN",  # noqa: S107 - a reference
        timeout: float = 5.0,
    ) -> None:
        if not participants:
            raise ConfigurationError('give at least one participant: {"name": "http…"}')
        if keys := [key for key in participants if "/" in key]:
            raise ConfigurationError(
                f"participant {keys[0]!r}: a job has one application: give "
                "settings.addresses_of(application)"
            )
        if token is not None and not is_reference(token):
            raise ConfigurationError(
                "token: give a reference, env:NAME or file:PATH, not the token itself: "
                "it would be pickled into Spark's files and pages"
            )
        try:
            self._participants = {
                check_name(n): open_participant(n, check_url(u), token, timeout)
                for n, u in participants.items()
            }
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
        check_urls(self._participants)

    def __repr__(self) -> str:
        urls = {n: p.url for n, p in self._participants.items()}
        return f"ParticipantSink({urls})"

    def check(self, application: str) -> None:
        """Check the token and the addresses, where the job is started.

        A participant that does not answer yet is not waited for: it refuses requests
        for another participant anyway.

        Raises:
            ConfigurationError: there is no token, or it is more than one word; or an
                address leads to another participant than the one that is meant.
        """
        check_addresses(self._participants, application)

    @property
    def participants(self) -> Mapping[str, TracedParticipant]:
        return {n: TracedParticipant(p) for n, p in self._participants.items()}

    def route(self, name: str) -> ParticipantSink:
        """Return this sink with one participant only.

        Raises:
            ConfigurationError: no participant of that name.
        """
        if name not in self._participants:
            known = ", ".join(sorted(self._participants))
            raise ConfigurationError(f"no participant {name!r} in the sink: {known}")
        return self._of([name])

    def without(self, name: str) -> ParticipantSink:
        """Return this sink for the other participants."""
        return self._of([other for other in self._participants if other != name])

    @classmethod
    def joined(cls, sinks: Sequence[ParticipantSink]) -> ParticipantSink:
        """Return one sink for the participants of several, whose names differ."""
        whole = copy.copy(sinks[0])
        whole._participants = {n: p for s in sinks for n, p in s._participants.items()}
        return whole

    @property
    def is_plain(self) -> bool:
        """Whether it only sends branches: its methods are not overridden."""
        phases = {"begin", "invoke", "invoke_batch", "pre_commit", "abort"}
        phases |= {"driver_path", "participants", "check"}
        own = (vars(kind) for kind in type(self).__mro__ if kind is not ParticipantSink)
        is_changed = any(phases & given.keys() for given in own)
        return not is_changed and vars(self).keys() == {"_participants"}

    def _of(self, names: Collection[str]) -> ParticipantSink:
        part = copy.copy(self)
        part._participants = {name: self._participants[name] for name in names}
        return part

    def begin(self, context: BranchContext) -> _Handle:
        """Open a branch. Nothing is sent until `pre_commit`."""
        return _Handle(context, Spool())

    def invoke_batch(self, handle: _Handle, batch: pa.RecordBatch) -> None:
        import pyarrow as pa

        if handle.writer is None:
            handle.schema = batch.schema
            handle.writer = pa.ipc.new_stream(handle.spool, batch.schema)
        handle.writer.write_batch(batch)
        handle.rows += batch.num_rows

    def invoke(self, handle: _Handle, record: Mapping[str, Any]) -> None:
        """Write one record. `invoke_batch` does the same a hundred times cheaper."""
        import pyarrow as pa

        batch = pa.RecordBatch.from_pylist([dict(record)], schema=handle.schema)
        self.invoke_batch(handle, batch)

    def pre_commit(self, handle: _Handle) -> tuple[Receipt, ...]:
        """Send the branch to every participant at once; return the vote of each.

        A branch without rows is not sent: its votes are read_only. A lost answer is
        asked for again with the same bytes, a few times.

        Raises:
            RejectedRowsError: with the rows that participants reject.
            ParticipantRefusedError: a participant votes abort.
            ParticipantUnavailableError: no answer from a participant.
        """
        context = handle.context
        if handle.writer is not None:
            handle.writer.close()
        if handle.rows == 0:
            return read_only(context.branch, self._participants)
        handle.digest = handle.spool.digest
        if context.rejects_at_most is None:
            votes = ask_at_once(lambda p: _prepare(p, handle), self._participants)
        else:
            votes = self._ask_for_rows(handle)
        handle.spool.close()
        failpoint("executor.after_first_prepare")
        return branch_receipts(context.branch, handle.rows, handle.digest, votes)

    def _ask_for_rows(self, handle: _Handle) -> dict[str, Vote]:
        """Ask for votes, and participants that refuse for the rows that they reject.

        A branch that is written again goes to one after the other, in their order: of
        two tasks with one key the same one is first everywhere.
        """
        asked = self._participants
        ask = asking(functools.partial(_prepare_or_name, handle))
        answers: Iterable[Vote | RejectedRowsError] = map(ask, asked.values())
        if not handle.context.rewrite:
            answers = ask_at_once(ask, asked).values()
        return dict(zip(asked, gather(answers, handle.context), strict=True))

    def abort(self, handle: _Handle) -> None:
        """Drop a branch that its task could not finish; best effort.

        Where that does not arrive, the end of the transaction drops the branch.
        """
        handle.spool.close()
        context, digest = handle.context, handle.digest
        if digest is None:
            return  # it was not sent
        transaction, branch = context.transaction_id, context.branch
        with contextlib.suppress(ParticipantError):
            ask_at_once(
                lambda p: p.abort_branch(
                    transaction, branch, digest, journal=_journal(context, p)
                ),
                self._participants,
            )


@dataclasses.dataclass(frozen=True)
class TracedParticipant:
    """A participant whose commits and aborts show as phases of the sink."""

    inner: RemoteParticipant

    @property
    def name(self) -> str:
        return self.inner.name

    def commit(self, record: TransactionRecord) -> None:
        with self._span("commit", record):
            self.inner.commit(record)

    def abort(self, record: TransactionRecord) -> None:
        with self._span("abort", record):
            self.inner.abort(record)

    def _span(
        self, phase: str, record: TransactionRecord
    ) -> AbstractContextManager[Step]:
        which = {"tpc.transaction.id": str(record.id), "tpc.participant": self.name}
        return span(f"ParticipantSink.{phase}", attributes=which | {"tpc.phase": phase})


def check_urls(participants: Mapping[str, RemoteParticipant]) -> None:
    """Raise `ConfigurationError` if two of them have one URL."""
    urls = {participant.url for participant in participants.values()}
    if len(urls) < len(participants):
        raise ConfigurationError(
            "two participants have one URL: a service seals a transaction once, so it "
            "can take part once"
        )


_known: Final[dict[str, JournalAt | None]] = {}
"""Journals that participants have named to this process, by URL.

None: it voted, and does not name one.
"""


def check_addresses(
    participants: Mapping[str, RemoteParticipant], application: str
) -> None:
    """Raise, as `check`, unless each address leads to the one that is meant.

    The tables of those without a service are made here.
    """
    identities = _identify(participants)
    wrong = [fault for _, fault in find_misdirected(identities, {application})]
    if wrong:
        urls = {name: participant.url for name, participant in participants.items()}
        raise ConfigurationError(
            f"{'; '.join(wrong)}: mend the addresses in ParticipantSink({urls})"
        )


def _identify(participants: Mapping[str, RemoteParticipant]) -> dict[str, Identity]:
    """Ask all for their journals, and keep them; those that name none are left out."""

    def ask(participant: RemoteParticipant) -> Identity | None:
        with contextlib.suppress(ParticipantError):
            if isinstance(participant, Embedded):
                participant.set_up()
            return participant.identity()
        return None

    answers = ask_at_once(ask, participants)
    for participant in participants.values():  # it may be another one by now
        _known.pop(participant.url, None)
    identities = {name: identity for name, identity in answers.items() if identity}
    for name, identity in identities.items():
        url = participants[name].url
        _known[url] = JournalAt(identity.journal, url)
    return identities


def journals_of(
    participants: Mapping[str, RemoteParticipant], voted: Collection[str] = ()
) -> dict[str, JournalAt]:
    """Return the journals of participants, as far as they have told.

    Each is asked once in a process, where the job starts; again before each batch if it
    did not answer then, and once more when it has `voted`.
    """
    _identify({n: p for n, p in participants.items() if p.url not in _known})
    for name in voted:
        if name in participants:
            _known.setdefault(participants[name].url, None)
    journals = {name: _known.get(p.url) for name, p in participants.items()}
    return {name: journal for name, journal in journals.items() if journal}


def _journal(context: BranchContext, participant: RemoteParticipant) -> str | None:
    known = context.journals.get(participant.name)
    return known.id if known else None


_TRIES: Final = 4
"""Times that a refusal is asked for its rows, while other tasks come and go."""


def _prepare_or_name(handle: _Handle, participant: RemoteParticipant) -> Vote:
    """Ask for a vote; where it is a refusal of the data, again for the rows.

    Raises:
        RejectedRowsError: it names them.
        ParticipantRefusedError: it names none.
    """
    at_most = handle.context.rejects_at_most
    for name_rows in (None, *[at_most] * _TRIES):
        try:
            return _prepare(participant, handle, name_rows)
        except RejectedRowsError as error:
            own = participant.name
            error.rows = [dataclasses.replace(r, participant=own) for r in error.rows]
            raise
        except ParticipantRefusedError as error:
            # A state is of the transaction there: then no row is to blame.
            is_of_rows = error.state in (None, "", "unknown")
            if error.refusal not in OF_ROWS or not is_of_rows:
                raise
            # What was in the way may be gone with an abort: then nothing is named.
            refused = error
    raise refused


def _prepare(
    participant: RemoteParticipant, handle: _Handle, name_rows: int | None = None
) -> Vote:
    """Ask again when the answer was lost; a refusal is an answer.

    *In progress* is waited for without end: the participant is alive and writes this
    very branch, so there will be an answer.

    Raises:
        ParticipantUnavailableError: no answer for `PREPARE_SECONDS`, or the caller is
            stopping.
    """
    context, spool = handle.context, handle.spool
    retry = RetryPolicy(SystemClock(), base=0.5, cap=5.0, stopping=context.stopping)
    until = time.monotonic() + PREPARE_SECONDS
    # Not given where it is not needed: a transport of one's own may lack it.
    naming = {} if name_rows is None else {"name_rows": name_rows}
    silence: ParticipantUnavailableError | None = None
    for _ in retry.tries():
        try:
            # Rule 13: a vote that is answered is of a branch that is durable there.
            return participant.prepare(
                context.transaction_id,
                context.branch,
                spool.open,
                rows=handle.rows,
                length=spool.length,
                digest=spool.digest,
                journal=_journal(context, participant),
                **naming,
            )
        except ParticipantUnavailableError as error:
            if error.refusal is not Refusal.IN_PROGRESS and time.monotonic() > until:
                raise
            if silence is None and error.refusal is not Refusal.IN_PROGRESS:
                text = "no vote yet, asking again for %.0f s: transaction=%s: %s"
                about = context.transaction_id
                logger.warning(text, PREPARE_SECONDS, about, error)
            silence = error
    assert silence is not None  # noqa: S101 - only a second try is not made
    raise silence
