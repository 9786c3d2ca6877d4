"""Empty batches: what they cost is the decision log's part, and nobody else's."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tracing_2pc.core.model import BranchId, Receipt, TransactionRecord
from tracing_2pc.core.ports import Participant
from tracing_2pc.sinks.base import read_only


@dataclasses.dataclass(frozen=True, slots=True)
class Obedient:
    """A participant that acknowledges whatever it is told."""

    name: str

    def commit(self, record: TransactionRecord) -> None:
        """Do nothing."""

    def abort(self, record: TransactionRecord) -> None:
        """Do nothing."""


def obedient(*names: str) -> dict[str, Participant]:
    """Return participants of these names, or two."""
    return {name: Obedient(name) for name in names or ("a", "b")}


def write_nothing(record: TransactionRecord) -> Sequence[Receipt]:
    """Vote as a batch without rows does, on one partition."""
    return read_only(BranchId(0, 0), record.participants)
