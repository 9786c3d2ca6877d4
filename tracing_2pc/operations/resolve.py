"""`tracing-2pc resolve`: a person decides, through the log, and signs for it."""

from __future__ import annotations

import getpass
import os
from typing import Literal

from tracing_2pc.errors import ConfigurationError, ContractError
from tracing_2pc.interfaces import DecisionLog
from tracing_2pc.model import TransactionId, TransactionRecord
from tracing_2pc.states import Decision, TransactionState

Outcome = Literal["mixed", "hazard"]


def resolve(
    log: DecisionLog,
    transaction: TransactionId,
    *,
    wanted: Decision | Outcome,
    reason: str,
) -> TransactionRecord:
    """Say what shall happen to a transaction; return the record afterwards.

    An active one may be aborted: the decision is write-once, so this is safe. A
    quarantined one is delivered again by the word that was decided, or concluded as
    mixed or hazard, which closes it and lets its application begin again.

    Raises:
        ConfigurationError: no such transaction, or no reason.
        ContractError: the log holds the other word, or not every vote is known.
    """
    if not reason.strip():
        raise ConfigurationError("--reason: say why; it is kept in the audit")
    if (record := log.read(transaction)) is None:
        raise ConfigurationError(f"{transaction}: the log holds no such transaction")
    who = f"{_user()}@{os.uname().nodename}"
    if record.state is TransactionState.ACTIVE:
        if wanted is not Decision.ABORT:
            raise ContractError(
                f"{transaction} is undecided: only --abort is possible, because nobody "
                "knows every vote"
            )
        log.abort(transaction, who=who, why=reason)
    elif record.state is not TransactionState.QUARANTINED:
        hint = "" if record.finished else "; `tracing-2pc recover` delivers it"
        raise ContractError(
            f"{transaction} is {record.state}: nothing for a person to decide{hint}"
        )
    elif isinstance(wanted, Decision):
        log.resume(transaction, wanted, who=who, why=reason)
    else:
        log.conclude(transaction, wanted, who=who, why=reason)
    return log.read(transaction) or record


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number without a name
        return str(os.getuid())
