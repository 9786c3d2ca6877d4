"""The decision log in SQLite or PostgreSQL."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from tracing_2pc.core.errors import (
    ConfigurationError,
    DecisionLogError,
    DecisionUnknownError,
)
from tracing_2pc.core.model import TransactionId, TransactionRecord
from tracing_2pc.core.states import TransactionEvent, TransactionState
from tracing_2pc.store.engines.writes import execute
from tracing_2pc.store.log import rules, schema
from tracing_2pc.store.log import statements as sql
from tracing_2pc.store.log.database import connect, missing_log
from tracing_2pc.store.log.decision_log import BaseDecisionLog
from tracing_2pc.store.log.reader import SqlLogReader
from tracing_2pc.store.log.records import SqlChange, checksum_of

_FINISHING: Final = (TransactionState.COMMITTING, TransactionState.ABORTING)


def open_log(
    reference: str,
    *,
    must_exist: bool = False,
    may_be_down: bool = False,
    now: Callable[[], float] = time.time,
) -> SqlDecisionLog:
    """Open the decision log, making it (and a SQLite file's folder) where missing.

    Args:
        reference: `sqlite:///folder/decisions.db`, `postgresql://user@host/database`
            (psycopg 3), or `env:NAME` of a variable that holds one. Only the URL of
            such a variable may hold a password.
        must_exist: make nothing, and refuse a log that is not there: an empty one
            would report that all is well.
        may_be_down: return a log that must exist even if it cannot be reached: its
            methods raise until it is back.
        now: Unix seconds, for the times on record.

    Raises:
        ConfigurationError: not such a URL, a log made by a newer release, or none
            where one must exist.
        DecisionLogError: it cannot be reached.
    """
    database = connect(reference, must_exist=must_exist)
    log = SqlDecisionLog(database, now=now)
    try:
        if not must_exist:
            log.create()
        elif not schema.exists(database):
            raise ConfigurationError(missing_log(database.address))
    except BaseException as error:
        if must_exist and may_be_down and isinstance(error, DecisionLogError):
            return log
        log.close()
        raise
    return log


class SqlDecisionLog(BaseDecisionLog, SqlLogReader):
    """`OperatorLog` on SQLite or PostgreSQL. Safe to use from several threads.

    A change of more than a delivery locks its application first: the changes of one
    application happen one after another.
    """

    def __repr__(self) -> str:
        return f"SqlDecisionLog({self._database.address!r})"

    def create(self) -> None:
        """Create the tables that are missing. Idempotent."""
        schema.ensure(self._database)

    @contextlib.contextmanager
    def _durable(self, deciding: TransactionId | None = None) -> Iterator[SqlChange]:
        def unanswered(text: str) -> DecisionUnknownError:
            return DecisionUnknownError(
                f"{deciding}: decision log {text}. The decision may or may not "
                "be in the log: ask it again",
                transaction_id=str(deciding),
            )

        # Rule 15: an unanswered commit is asked again, never taken for a no.
        unknown = unanswered if deciding else None
        with self._database.durable(unanswered=unknown) as connection:
            yield self._change(connection)

    @contextlib.contextmanager
    def _relaxed(self) -> Iterator[SqlChange]:
        with self._database.relaxed() as connection:
            yield self._change(connection)

    def acknowledge(
        self, transaction: TransactionId, participant: str, untold: str | None = None
    ) -> None:
        """Record that a participant has obeyed the decision. Idempotent."""
        row = {"one": str(transaction), "by": [participant], "untold": untold}
        with self._database.relaxed() as connection:
            if connection.execute(sql.ACKNOWLEDGE, {**row, "at": self._now()}).rowcount:
                return
        if (record := self.read(transaction)) is not None:
            rules.check_acknowledge(record, participant)

    def acknowledge_last(
        self, record: TransactionRecord, told: Mapping[str, str | None]
    ) -> None:
        """Record the last acknowledgements and close the transaction, in one change."""
        is_usual = record.state in _FINISHING and not record.given_up
        if is_usual and not any(told.values()):
            now = self._now()
            finished = rules.apply_event(record, TransactionEvent.FINISH, finished=now)
            values = {
                "of": record.id.application,
                "one": str(record.id),
                "by": list(told),
                "untold": None,
                "at": now,
                "state_before": str(record.state),
                "checksum_before": checksum_of(record),
                "state": str(finished.state),
                "checksum": checksum_of(finished),
            }
            with self._database.relaxed() as connection:
                # Rule 11: finished only after every acknowledgement.
                writes = sql.acknowledge_last(connection.dialect.name)
                if execute(connection, writes, values):
                    if finished.state is TransactionState.COMMITTED:
                        self._change(connection).drop_receipts_before(finished)
                    return
        super().acknowledge_last(record, told)

    def postpone(
        self,
        transaction: TransactionId,
        participant: str,
        error: str,
        retry_at: float | None,
    ) -> None:
        """Record that a try failed, why (a short word), and when the next is due."""
        row = {"one": str(transaction), "by": participant, "error": error}
        with self._database.relaxed() as connection:
            connection.execute(sql.POSTPONE, {**row, "retry_at": retry_at})

    def forget(self, application: str, *, finished_before: float, limit: int) -> int:
        """Drop old finished batches; where there are none, nothing is written."""
        asked = {"of": application, "finished_before": finished_before, "slice": limit}
        if not self._ask(sql.FORGETTABLE, **asked):
            return 0
        with self._database.relaxed() as connection:
            connection.execute(sql.LOCK_APPLICATION, asked)
            # Rule 17: only below the newest batch that Spark has begun.
            batches = connection.scalars(sql.FORGETTABLE, asked).all()
            if not batches:
                return 0
            to = {"of": application, "up_to": batches[-1]}
            connection.execute(sql.RAISE_FORGOTTEN_THROUGH, to)
            connection.execute(sql.FORGET_RECEIPTS, to)
            connection.execute(sql.FORGET_DELIVERIES, to)
            connection.execute(sql.FORGET_RUNS, to)
            return connection.execute(sql.FORGET_TRANSACTIONS, to).rowcount

    def take_lease(self, application: str, who: str, seconds: float) -> bool:
        """Take an application's lease, or renew our own; False if another holds it.

        A lease that would last much longer than ours is from before a clock was set
        back, and counts as over. See `OperatorLog.take_lease`.
        """
        now = self._now()
        asked = {"of": application, "who": who, "at": now, "until": now + seconds}
        asked["beyond"] = now + 10 * seconds
        with self._database.relaxed() as connection:
            return bool(connection.execute(sql.TAKE_LEASE, asked).rowcount)

    def give_leases_back(self, who: str) -> None:
        """End the leases of a process that stops."""
        with self._database.relaxed() as connection:
            connection.execute(sql.GIVE_LEASE_BACK, {"who": who})

    def close(self) -> None:
        """Release connections. Nothing is lost if it is never called."""
        self._database.close()
