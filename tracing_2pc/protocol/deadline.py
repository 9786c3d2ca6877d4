"""The transaction timeout: a warning at 0.8 of it, then abort is asked for.

Only the log judges whether it is over: `DecisionLog.expire`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Final

from tracing_2pc.core.errors import AbortedError, TwoPhaseError
from tracing_2pc.core.model import TransactionRecord
from tracing_2pc.core.ports import DecisionLog, Tracing
from tracing_2pc.core.states import Decision
from tracing_2pc.protocol.decisions import OutOfTimeError, decide_abort

logger = logging.getLogger(__name__)

WARN_AT: Final = 0.8
THREAD: Final = "tpc-deadline"


@contextlib.contextmanager
def deadline(
    seconds: float, expire: Callable[[], None], record: TransactionRecord
) -> Iterator[None]:
    """Call `expire` once, from a thread of its own, unless the block ends in time.

    It may run while the block is being left. 0 seconds mean no deadline.
    """
    if seconds <= 0:
        yield
        return
    ended = threading.Event()

    def watch() -> None:
        if ended.wait(seconds * WARN_AT):
            return
        text = "no decision yet: transaction=%s timeout=%gs passed=%g"
        logger.warning(text, record.id, seconds, WARN_AT, extra=record.log_fields)
        if not ended.wait(seconds * (1 - WARN_AT)):
            expire()

    threading.Thread(target=watch, name=THREAD, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


@dataclasses.dataclass
class Expiry:
    """Asks for abort when time is out; stops the tasks unless the votes were faster."""

    log: DecisionLog
    record: TransactionRecord
    cancel: Callable[[TransactionRecord], None]
    tracing: Tracing
    expired: bool = False

    def __call__(self) -> None:
        """Ask for abort."""
        self.expired = True
        cause = OutOfTimeError("transaction_timeout")
        # Rule 8: the log decides; a commit that stands is not cancelled.
        detail = f"no decision within {self.record.timeout:g} s"
        decided = decide_abort(self.log, self.record, cause, self.tracing, detail)
        if decided is None or decided.decision is Decision.ABORT:
            self.cancel(self.record)

    def raise_with_advice(self, error: AbortedError) -> None:
        """Raise an abort, which was sent, again; with the setting that would help."""
        if self.expired and (advice := self._advice()):
            id_ = str(self.record.id)
            raise AbortedError(f"{error} {advice}", transaction_id=id_) from error

    def _advice(self) -> str:
        """Return which timeout to set, if the attempt before ran out of time, too."""
        id_ = self.record.id
        try:
            before = self.log.read(dataclasses.replace(id_, attempt=id_.attempt - 1))
        except TwoPhaseError:
            return ""
        if before is None or before.decision is not Decision.ABORT:
            return ""
        if not 0 < before.timeout <= (before.decided or 0.0) - before.started:
            return ""
        return (
            "(the attempt before ran out of time, too: set transaction_timeout to "
            f"{2 * self.record.timeout:g}s or more, or make the batches smaller)"
        )
