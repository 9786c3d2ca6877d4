"""Ask several participants at once."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Asked = TypeVar("Asked")
Said = TypeVar("Said")


def ask_at_once(
    ask: Callable[[Asked], Said],
    participants: Mapping[str, Asked],
    *,
    one_by_one: bool = False,
) -> dict[str, Said]:
    """Call `ask` for each of them, in a thread each; return what they said, by name.

    The caller's context goes along: their requests are children of its span. All are
    asked, whatever one of them raises; the first error, in their order, then goes on.
    """
    if not participants:
        return {}
    with ThreadPoolExecutor(1 if one_by_one else len(participants)) as threads:
        asked = {
            name: threads.submit(contextvars.copy_context().run, ask, participant)
            for name, participant in participants.items()
        }
    return {name: said.result() for name, said in asked.items()}
