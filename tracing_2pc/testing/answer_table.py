"""Steps that make a transaction, requests about it, and checks of the answers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Final

from tracing_2pc.core.states import Decision, Refusal
from tracing_2pc.participant.answers import Answer
from tracing_2pc.testing.promises import broken
from tracing_2pc.testing.resource_process import Case, ResourceClient

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


def prepare(client: ResourceClient, case: Case) -> None:
    """Prepare the first branch."""
    answer = client.prepare(case.id(), case.one)
    expect_answer(answer, PREPARED, "A first prepare", TABLE)


def commit(client: ResourceClient, case: Case) -> None:
    """Prepare and commit it."""
    prepare(client, case)
    answer = client.commit(case.id(), case.one)
    expect_answer(answer, COMMITTED, "A commit of what is prepared", TABLE)


def abort(client: ResourceClient, case: Case) -> None:
    """Prepare and abort it."""
    prepare(client, case)
    answer = client.abort(case.id())
    expect_answer(answer, ABORTED, "An abort of what is prepared", TABLE)


def resolve(client: ResourceClient, case: Case, outcome: Decision) -> None:
    """Prepare it, and let a person decide."""
    prepare(client, case)
    client.resolve(case.id(), outcome)


def commit_another(client: ResourceClient, case: Case) -> None:
    """Commit another attempt of the batch."""
    client.prepare(case.id(attempt=2), case.one)
    client.commit(case.id(attempt=2), case.one)


def forget(client: ResourceClient, case: Case) -> None:
    """Commit it, and forget it with a later batch."""
    commit(client, case)
    client.commit(case.id(9), forgotten_through=8)


GIVEN: Final[Mapping[str, Callable[[ResourceClient, Case], None]]] = {
    "unknown": lambda client, case: None,
    "prepared": prepare,
    "committed": commit,
    "aborted": abort,
    "resolved_committed": functools.partial(resolve, outcome=Decision.COMMIT),
    "resolved_aborted": functools.partial(resolve, outcome=Decision.ABORT),
    "another_committed": commit_another,
    "forgotten": forget,
}

REQUESTS: Final[Mapping[str, Callable[[ResourceClient, Case], Answer]]] = {
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
