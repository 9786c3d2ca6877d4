"""The answer table of a participant, and how a test brings a transaction about."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Final

from tracing_2pc.core.states import Decision, Refusal
from tracing_2pc.participant.answers import Answer
from tracing_2pc.testing.promises import broken
from tracing_2pc.testing.resource_process import Case, Process

Expected = tuple[Refusal | None, str]
"""A refusal, or None for an acknowledgement, and the state that the answer names."""

UNKNOWN: Final = (Refusal.UNKNOWN, "unknown")
PREPARED: Final = (None, "prepared")
COMMITTED: Final = (None, "committed")
ABORTED: Final = (None, "aborted")
IS_PREPARED: Final = (Refusal.CONFLICT, "prepared")
IS_COMMITTED: Final = (Refusal.CONFLICT, "committed")
IS_ABORTED: Final = (Refusal.CONFLICT, "aborted")
FORGOTTEN: Final = (Refusal.FORGOTTEN, "forgotten")

_TO_COMMITTED: Final = {
    "prepare same": IS_COMMITTED,
    "prepare other": IS_COMMITTED,
    "commit": COMMITTED,
    "commit empty": COMMITTED,
    "abort": IS_COMMITTED,
    "abort branch": IS_COMMITTED,
    "abort branch by digest": IS_COMMITTED,
    "abort branch of other": IS_COMMITTED,
    "look up": COMMITTED,
}
_TO_ABORTED: Final = {
    "prepare same": IS_ABORTED,
    "prepare other": IS_ABORTED,
    "commit": IS_ABORTED,
    "commit empty": IS_ABORTED,
    "abort": ABORTED,
    "abort branch": ABORTED,
    "abort branch by digest": ABORTED,
    "abort branch of other": ABORTED,
    "look up": ABORTED,
}

ANSWERS: Final[Mapping[str, Mapping[str, Expected]]] = {
    "unknown": {
        "prepare same": PREPARED,
        "commit": UNKNOWN,
        "commit empty": COMMITTED,
        "abort": ABORTED,
        "abort branch": ABORTED,
        "abort branch by digest": ABORTED,
        "abort branch of other": ABORTED,
        "look up": UNKNOWN,
    },
    "prepared": {
        "prepare same": PREPARED,
        "prepare other": IS_PREPARED,
        "commit": COMMITTED,
        "commit empty": COMMITTED,
        "abort": ABORTED,
        "abort branch": ABORTED,
        "abort branch by digest": ABORTED,
        "abort branch of other": IS_PREPARED,
        "look up": PREPARED,
    },
    "committed": _TO_COMMITTED,
    "aborted": _TO_ABORTED,
    "resolved_commit": _TO_COMMITTED,
    "resolved_abort": _TO_ABORTED,
    "another_committed": {
        "prepare same": IS_COMMITTED,
        "prepare other": IS_COMMITTED,
        "commit": UNKNOWN,
        "commit empty": UNKNOWN,
        "abort": ABORTED,
        "abort branch": ABORTED,
        "abort branch by digest": ABORTED,
        "abort branch of other": ABORTED,
        "look up": UNKNOWN,
    },
    "forgotten": dict.fromkeys(_TO_COMMITTED, FORGOTTEN),
}
"""The answer table: what a transaction is, what is asked, and the answer."""

TABLE = (
    "Answer by answers.py, from what the journal says under the lock: the answer "
    "depends on the state only"
)


def expect_answer(answer: Answer, expected: Expected, asked: str, promise: str) -> None:
    """Compare an answer with the table's."""
    if (seen := (answer.refusal, answer.state)) != expected:
        reason = f" ({answer.detail})" if answer.detail else ""
        broken(
            f"{asked} was answered by {_in_words(seen)}{reason}, and has to be "
            f"{_in_words(expected)}. {promise}"
        )


def _in_words(answer: Expected) -> str:
    refusal, state = answer
    return f"success: {state}" if refusal is None else f"refusal {refusal}: {state}"


def do_nothing(process: Process, case: Case) -> None:
    """Nobody has asked for anything."""


def prepare(process: Process, case: Case) -> None:
    """Prepare the first branch."""
    answer = process.prepare(case.id(), case.one)
    expect_answer(answer, PREPARED, "A first prepare", TABLE)


def commit(process: Process, case: Case) -> None:
    """Prepare and commit it."""
    prepare(process, case)
    answer = process.commit(case.id(), case.one)
    expect_answer(answer, COMMITTED, "A commit of what is prepared", TABLE)


def abort(process: Process, case: Case) -> None:
    """Prepare and abort it."""
    prepare(process, case)
    answer = process.abort(case.id())
    expect_answer(answer, ABORTED, "An abort of what is prepared", TABLE)


def resolve(process: Process, case: Case, outcome: Decision) -> None:
    """Prepare it, and let a person decide."""
    prepare(process, case)
    process.resolve(case.id(), outcome)


def commit_another(process: Process, case: Case) -> None:
    """Commit another attempt of the batch."""
    process.prepare(case.id(attempt=2), case.one)
    process.commit(case.id(attempt=2), case.one)


def forget(process: Process, case: Case) -> None:
    """Commit it, and say with a later batch that it is forgotten."""
    commit(process, case)
    process.commit(case.id(9), forgotten_through=8)


GIVEN: Final[Mapping[str, Callable[[Process, Case], None]]] = {
    "unknown": do_nothing,
    "prepared": prepare,
    "committed": commit,
    "aborted": abort,
    "resolved_commit": functools.partial(resolve, outcome=Decision.COMMIT),
    "resolved_abort": functools.partial(resolve, outcome=Decision.ABORT),
    "another_committed": commit_another,
    "forgotten": forget,
}

REQUESTS: Final[Mapping[str, Callable[[Process, Case], Answer]]] = {
    "prepare same": lambda p, case: p.prepare(case.id(), case.one),
    "prepare other": lambda p, case: p.prepare(case.id(), case.other),
    "commit": lambda p, case: p.commit(case.id(), case.one),
    "commit empty": lambda p, case: p.commit(case.id()),
    "abort": lambda p, case: p.abort(case.id()),
    "abort branch": lambda p, case: p.abort(case.id(), branch=case.one.ref.branch),
    "abort branch by digest": lambda p, case: p.abort(
        case.id(), branch=case.one.ref.branch, digest=case.one.ref.digest
    ),
    "abort branch of other": lambda p, case: p.abort(
        case.id(), branch=case.one.ref.branch, digest=case.other.ref.digest
    ),
    "look up": lambda p, case: p.show(case.id()),
}
