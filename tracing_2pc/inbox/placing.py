"""Decides which events of requests are new, and at which position each of them is."""

from __future__ import annotations

from collections.abc import Sequence

from tracing_2pc.core.errors import RefusalError
from tracing_2pc.core.states import Refusal
from tracing_2pc.inbox.event import NewEvent, Stored
from tracing_2pc.inbox.tables import Key, Placed

Request = tuple[str, NewEvent]
"""A producer, and an event of its request."""

Answer = list[Stored] | RefusalError


def lacking() -> RefusalError:
    """Return the refusal of a text that the database cannot hold."""
    detail = "an event has a character that the database here lacks"
    return RefusalError(Refusal.MALFORMED, detail)


def place_all(
    requests: list[Sequence[Request]], known: dict[Key, tuple[str, int]], last: int
) -> tuple[list[Answer], list[Placed]]:
    """Return each request's positions, after `last`, and the events to add."""
    added, answers = list[Placed](), list[Answer]()
    for request in requests:
        answer, new = _place(request, known, last + len(added))
        answers.append(answer)
        for position, producer, event in new:
            known[producer, event.id] = event.digest, position
            added.append((position - last, producer, event))
    return answers, added


def _place(
    request: Sequence[Request], known: dict[Key, tuple[str, int]], last: int
) -> tuple[Answer, list[Placed]]:
    """Return a request's positions, and the events to add after `last`."""
    answer, new = list[Stored](), list[Placed]()
    here: dict[str, tuple[str, int]] = {}
    for producer, event in request:
        digest, position = known.get((producer, event.id)) or here.get(
            event.id, ("", 0)
        )
        is_new = not digest
        if is_new:
            position = last + len(new) + 1
            here[event.id] = event.digest, position
            new.append((position, producer, event))
        elif digest != event.digest:
            detail = (
                f"event {event.id!r} of {producer} is stored with other content, at "
                f"position {position}: nothing of this request was stored. A changed "
                "event needs an id of its own"
            )
            return RefusalError(Refusal.CONFLICT, detail), []
        answer.append(Stored(event.id, position, is_new))
    return answer, new
