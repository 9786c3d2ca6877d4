"""A sink whose store drops branches prepared for too long, as Kafka's brokers do.

Such a vote lapses, against rule 12: we can warn before, and report the lost rows
afterwards, and no more.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from typing import Any

from tracing_2pc.core.errors import ContractError
from tracing_2pc.core.model import TransactionRecord
from tracing_2pc.sinks.members import option

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class StoreTimeout:
    """The time for which a store keeps a branch prepared; from begin, in seconds."""

    seconds: float = math.inf  # the limit; infinite if the store keeps it for ever
    # The part of the limit after which each commit is warned of; None never.
    warn_at: float | None = None
    gives_up: bool = False  # a recovered commit that fails after the limit is given up

    @classmethod
    def of(cls, sink: Any) -> StoreTimeout:
        """Read the attributes of a sink, or raise `ContractError`."""
        limit = option(sink, "store_timeout")
        warn_at = option(sink, "store_timeout_warning")
        gives_up = option(sink, "give_up_after_store_timeout")
        where = type(sink).__name__
        if limit is None and (warn_at is not None or gives_up):
            raise ContractError(
                f"{where} has no store_timeout: set the seconds for which its store "
                "keeps what is prepared"
            )
        if limit is not None and not (_is_number(limit) and limit > 0):
            raise ContractError(f"{where}.store_timeout is no number of seconds")
        if warn_at is not None and not (_is_number(warn_at) and 0 <= warn_at <= 1):
            raise ContractError(f"{where}.store_timeout_warning is not from 0 to 1")
        if type(gives_up) is not bool:
            raise ContractError(
                f"{where}.give_up_after_store_timeout is neither True nor False"
            )
        return cls(math.inf if limit is None else limit, warn_at, gives_up)

    def warn(self, record: TransactionRecord, name: str, elapsed: float) -> None:
        """Log that a commit is close to the limit, or beyond."""
        if self.warn_at is not None and elapsed > self.warn_at * self.seconds:
            logger.warning(
                "prepared for long: transaction=%s participant=%s elapsed=%.0fs "
                "store_timeout=%gs",
                *(record.id, name, elapsed, self.seconds),
                extra=record.log_fields,
            )

    def may_give_up(self, record: TransactionRecord, elapsed: float) -> bool:
        """Whether a commit that failed now is not to be tried again."""
        return self.gives_up and record.recovering and elapsed > self.seconds


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
