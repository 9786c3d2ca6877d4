"""Ask several participants at once."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import Final, TypeVar

Target = TypeVar("Target")
Answer = TypeVar("Answer")

TOGETHER: Final = 0.05
"""Seconds for which an answer is kept: others that come meanwhile go along."""


def ask_at_once(
    ask: Callable[[Target], Answer],
    participants: Mapping[str, Target],
    *,
    each: Callable[[dict[str, Answer]], object] | None = None,
) -> dict[str, Answer]:
    """Call `ask` for each of them, in a thread each; return their answers, by name.

    The caller's context goes along: their requests are children of its span. All are
    asked, even if one of them raises; the first error, in their order, is then raised.
    `each` is called with answers in the caller's thread: one that has arrived, and
    those that arrive within `TOGETHER` of it. Its exception is raised when all have
    been asked.
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
            missing = set(names)
            while missing:
                wait(missing, return_when=FIRST_COMPLETED)
                come, missing = wait(missing, TOGETHER)
                answers = (answer for answer in come if answer.exception() is None)
                each({names[answer]: answer.result() for answer in answers})
    return {name: answer.result() for name, answer in asked.items()}
