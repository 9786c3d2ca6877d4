"""The sink that writes to participants: each branch encoded once, sent to all."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from tracing_2pc.errors import (
    ConfigurationError,
    ParticipantError,
    ParticipantUnavailableError,
)
from tracing_2pc.failpoints import failpoint
from tracing_2pc.interfaces import Step, SystemClock
from tracing_2pc.model import (
    BranchContext,
    Identity,
    Receipt,
    TransactionId,
    TransactionRecord,
)
from tracing_2pc.protocol.fan_out import ask_at_once
from tracing_2pc.protocol.patience import Patience
from tracing_2pc.settings import check_name, check_url
from tracing_2pc.sinks.spool import Spool
from tracing_2pc.states import Vote
from tracing_2pc.telemetry.spans import span
from tracing_2pc.telemetry.traced_sink import traced_sink
from tracing_2pc.transports.http import HttpParticipant
from tracing_2pc.transports.probe import misdirected

if TYPE_CHECKING:
    import pyarrow as pa

PREPARE_PATIENCE = 60.0
"""Seconds for which a prepare is sent again: a service that is restarted, or its
database, is back by then. After that the task fails, and with it the attempt."""


@dataclasses.dataclass(eq=False)
class _Handle:
    """A branch being written; it never leaves its task."""

    context: BranchContext
    spool: Spool
    schema: pa.Schema | None = None
    writer: pa.ipc.RecordBatchStreamWriter | None = None
    rows: int = 0
    digest: str | None = None
    """Of what was sent; None while nothing was."""


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

    def __init__(
        self,
        participants: Mapping[str, str],
        *,
        token: str | None = "env:TPC_TOKEN",  # noqa: S107 - a reference
        timeout: float = 5.0,
    ) -> None:
        if not participants:
            raise ConfigurationError('give at least one participant: {"name": "http…"}')
        if token is not None and not token.startswith(("env:", "file:")):
            raise ConfigurationError(
                "token: give a reference, env:NAME or file:PATH, not the token itself: "
                "it would be pickled into Spark's files and pages"
            )
        try:
            self._participants = {
                check_name(n): HttpParticipant(n, check_url(u), token, timeout)
                for n, u in participants.items()
            }
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
        if len({p.url for p in self._participants.values()}) < len(participants):
            raise ConfigurationError(
                "two participants have one URL: a service seals a transaction once, so "
                "it can take part once"
            )

    def __repr__(self) -> str:
        urls = {n: p.url for n, p in self._participants.items()}
        return f"ParticipantSink({urls})"

    def check(self, application: str) -> None:
        """Look where the job is started, so that a mistake is found there.

        Whoever does not answer yet is not waited for: it refuses what is meant for
        another as soon as it is asked.

        Raises:
            ConfigurationError: there is no token, or it is more than one word; or an
                address leads to another participant than the one that is meant.
        """
        for participant in self._participants.values():
            participant.authorization()
        known = ask_at_once(_identity, self._participants)
        identities = {name: one for name, one in known.items() if one is not None}
        wrong = [why for _, why in misdirected(identities, {application})]
        if wrong:
            raise ConfigurationError(
                f"{'; '.join(wrong)}: mend the addresses in {self!r}"
            )

    @property
    def participants(self) -> Mapping[str, PhasedParticipant]:
        """Those that a decision is delivered to, by name."""
        return {n: PhasedParticipant(p) for n, p in self._participants.items()}

    def route(self, name: str) -> ParticipantSink:
        """Return this sink with one participant only.

        Raises:
            ConfigurationError: no participant of that name.
        """
        if name not in self._participants:
            known = ", ".join(sorted(self._participants))
            raise ConfigurationError(f"no participant {name!r} in the sink: {known}")
        one = object.__new__(type(self))
        one._participants = {name: self._participants[name]}
        return one

    def begin(self, context: BranchContext) -> _Handle:
        """Open a branch. Nothing is sent until `pre_commit`."""
        return _Handle(context, Spool())

    def invoke_batch(self, handle: _Handle, batch: pa.RecordBatch) -> None:
        """Encode a batch of records into the spool."""
        import pyarrow as pa

        if handle.writer is None:
            handle.schema = batch.schema
            handle.writer = pa.ipc.new_stream(handle.spool, batch.schema)
        handle.writer.write_batch(batch)
        handle.rows += batch.num_rows

    def invoke(self, handle: _Handle, record: Mapping[str, Any]) -> None:
        """Write one record. `invoke_batch` does the same a hundred times cheaper."""
        import pyarrow as pa

        schema = handle.schema
        batch = pa.RecordBatch.from_pylist([dict(record)], schema=schema)
        self.invoke_batch(handle, batch)

    def pre_commit(self, handle: _Handle) -> Receipt:
        """Send the branch to every participant at once; return their votes.

        A branch without rows is not sent: its votes are read_only. A lost answer is
        asked for again with the same bytes, a few times.

        Raises:
            ParticipantRefusedError: somebody votes abort.
            ParticipantUnavailableError: no answer from somebody.
        """
        context = handle.context
        if handle.writer is not None:
            handle.writer.close()
        if handle.rows == 0:
            votes = dict.fromkeys(self._participants, Vote.READ_ONLY)
            return Receipt(context.branch, 0, "", votes)
        digest, rows, spool = handle.spool.digest, handle.rows, handle.spool
        handle.digest = digest

        def prepare(participant: HttpParticipant) -> Vote:
            return participant.prepare(
                context.transaction_id,
                context.branch,
                spool.open,
                rows=rows,
                length=spool.length,
                digest=digest,
            )

        votes = ask_at_once(lambda p: _insist(lambda: prepare(p)), self._participants)
        spool.close()
        failpoint("executor.after_first_prepare")
        return Receipt(context.branch, rows, digest, votes)

    def abort(self, handle: _Handle) -> None:
        """Drop a branch that its task could not finish; best effort.

        What does not arrive is dropped by the transaction's abort or commit, which
        names the branches that count.
        """
        handle.spool.close()
        context, digest = handle.context, handle.digest
        if digest is None:
            return  # nobody has heard of it
        with contextlib.suppress(ParticipantError):
            ask_at_once(
                lambda p: p.abort_branch(
                    context.transaction_id, context.branch, digest
                ),
                self._participants,
            )


@dataclasses.dataclass(frozen=True)
class PhasedParticipant:
    """A participant whose commits and aborts show as phases of the sink."""

    inner: HttpParticipant

    @property
    def name(self) -> str:
        """Its configured name."""
        return self.inner.name

    def commit(self, record: TransactionRecord) -> None:
        """Commit the chosen branches there; see `interfaces.Participant`."""
        with self._phase("commit", record.id):
            self.inner.commit(record)

    def abort(self, record: TransactionRecord) -> None:
        """Abort the transaction there; see `interfaces.Participant`."""
        with self._phase("abort", record.id):
            self.inner.abort(record)

    def _phase(
        self, phase: str, transaction: TransactionId
    ) -> AbstractContextManager[Step]:
        attributes = {
            "tpc.transaction.id": str(transaction),
            "tpc.participant": self.name,
            "tpc.phase": phase,
        }
        return span(f"{ParticipantSink.__name__}.{phase}", attributes=attributes)


def _identity(participant: HttpParticipant) -> Identity | None:
    try:
        return participant.identity()
    except ParticipantError:
        return None


def _insist(ask: Callable[[], Vote]) -> Vote:
    """Ask again when the answer was lost; a refusal is an answer.

    425 is never the last word: the participant is alive and writes this very branch,
    so there will be an answer.
    """
    until = time.monotonic() + PREPARE_PATIENCE
    for _ in Patience(SystemClock(), base=0.5, cap=5.0).tries():
        try:
            return ask()
        except ParticipantUnavailableError as error:
            if error.status != 425 and time.monotonic() > until:
                raise
    raise AssertionError("patience without a reason to stop does not end")
