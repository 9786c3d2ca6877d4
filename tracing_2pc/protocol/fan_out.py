"""Ask several participants at once."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

Target = TypeVar("Target")
Answer = TypeVar("Answer")


def ask_at_once(
    ask: Callable[[Target], Answer],
    participants: Mapping[str, Target],
    *,
    each: Callable[[str, Answer], object] | None = None,
) -> dict[str, Answer]:
    """Call `ask` for each of them, in a thread each; return their answers, by name.

    The caller's context goes along: their requests are children of its span. All are
    asked, whatever one of them raises; the first error, in their order, then goes on.

    `each` is given a name and an answer as soon as that has come, in the caller's
    thread; what it raises goes on when all have been asked.
    """
    if not participants:
        return {}
    with ThreadPoolExecutor(len(participants)) as threads:
        asked = {
            name: threads.submit(contextvars.copy_context().run, ask, participant)
            for name, participant in participants.items()
        }
        if each is not None:
            names = {answer: name for name, answer in asked.items()}
            for answer in as_completed(names):
                if answer.exception() is None:
                    each(names[answer], answer.result())
    return {name: answer.result() for name, answer in asked.items()}
