"""Whether everybody on record has voted: the condition of a commit (rule 1).

A participant's answer to a prepare, its vote, is in `participant/answers.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from tracing_2pc.core.errors import ContractError, ParticipantRefusedError
from tracing_2pc.core.model import BranchId, Receipt, TransactionRecord
from tracing_2pc.core.states import Vote


def raise_if_refused(record: TransactionRecord, receipts: Sequence[Receipt]) -> None:
    """Raise the first vote to abort, in the words of its participant.

    Raises:
        ParticipantRefusedError: a participant votes abort.
    """
    for receipt in receipts:
        if receipt.vote is Vote.ABORT:
            raise ParticipantRefusedError(
                receipt.reason or f"{receipt.participant} votes abort on {record.id}",
                transaction_id=str(record.id),
                participant=receipt.participant,
            )


def check_votes(record: TransactionRecord, receipts: Sequence[Receipt]) -> None:
    """Raise unless every participant on record has voted for all that was written.

    Participants that share one branch share all of their branches, because one Spark
    job writes them; so a lost receipt is noticed. For an empty batch, too, each has
    voted: read_only.

    The participant that keeps rejected rows has voted about each branch that others
    have voted about, once: routes share none of theirs, and all share it.

    Raises:
        ContractError: a vote is missing, is a vote to abort, or comes from a
            participant that is not on record; or one has two receipts for a partition.
    """
    partitions: set[tuple[str, int]] = set()
    voters: dict[BranchId, set[str]] = defaultdict(set)
    keeping: set[BranchId] = set()
    for receipt in receipts:
        name = receipt.participant
        if name not in record.participants:
            raise refuse_receipt(record, receipt, f"{name} is not on record")
        if receipt.vote not in (Vote.COMMIT, Vote.READ_ONLY):
            raise refuse_receipt(record, receipt, f"{name} voted {receipt.vote}")
        partition = (name, receipt.branch.partition)
        if name == record.rejects:
            if receipt.branch in keeping:
                detail = f"{name} has two receipts for it"
                raise refuse_receipt(record, receipt, detail)
            keeping.add(receipt.branch)
            continue
        if partition in partitions:
            # Twins of one task: committing both would write its rows twice.
            detail = f"{name} has two receipts for its partition"
            raise refuse_receipt(record, receipt, detail)
        partitions.add(partition)
        voters[receipt.branch].add(name)
    _check_nobody_is_missing(record, voters)
    if record.rejects and (alone := sorted(voters.keys() ^ keeping)):
        missing = {record.rejects}
        if alone[0] not in voters:
            missing = set(record.participants) - missing
        raise _no_vote(record, missing, f" about branch {alone[0]}")


def _check_nobody_is_missing(
    record: TransactionRecord, voters: dict[BranchId, set[str]]
) -> None:
    writers = (name for name in record.participants if name != record.rejects)
    together: dict[str, set[str]] = {name: set() for name in writers}
    for names in voters.values():
        for name in names:
            together[name] |= names
    for branch, names in voters.items():
        if missing := set().union(*(together[name] for name in names)) - names:
            raise _no_vote(record, missing, f" about branch {branch}")
    if missing := {name for name, names in together.items() if not names}:
        raise _no_vote(record, missing, "")


def _no_vote(record: TransactionRecord, missing: set[str], where: str) -> ContractError:
    return ContractError(
        f"{record.id} cannot commit: no vote of {', '.join(sorted(missing))}{where}",
        transaction_id=str(record.id),
        participant=min(missing),
    )


def refuse_receipt(
    record: TransactionRecord, receipt: Receipt, detail: str
) -> ContractError:
    """Return the error for a receipt that a commit cannot stand on."""
    return ContractError(
        f"{record.id} cannot commit, receipt of branch {receipt.branch}: {detail}",
        transaction_id=str(record.id),
        participant=receipt.participant,
    )
