"""Whether an inbox is the one that a reader has read."""

from __future__ import annotations

from typing import Any, Final

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.inbox.event import Offset

PUT_BACK: Final = (
    "It was put back from a copy, or is another one: find out what is missing before a "
    "reader goes on with a new checkpoint"
)


class InboxChangedError(ConfigurationError):
    """An inbox is not the one that a reader has read: it was put back, or trimmed."""


def raise_if_changed(shown: str, head: Any, offset: Offset, there: Offset) -> None:
    """Check that the events read up to an offset are still there.

    Args:
        shown: name and address of the inbox.
        head: its head's row.
        offset: of the last event that was read.
        there: the inbox's event at that position.

    Raises:
        InboxChangedError: it ends before, has another event there, or has trimmed the
            next one.
    """
    where = f"{shown}: position {offset.position}"
    if offset.inbox not in ("", head.inbox):
        raise InboxChangedError(f"{where} was read in another inbox. {PUT_BACK}")
    if offset.position > head.position:
        raise InboxChangedError(
            f"{where} was read, and it ends at {head.position}. {PUT_BACK}"
        )
    if offset.position < head.trimmed:
        raise InboxChangedError(
            f"{where} is the start, and events up to {head.trimmed} are deleted: "
            "raise keep=, or begin a new reader with a new checkpoint"
        )
    read, actual = offset.digest, there.digest
    if not read:  # an earlier checkpoint
        read, actual = offset.id, there.id
    if "" not in (read, actual) and read != actual:
        raise InboxChangedError(
            f"{where} was event {offset.id!r}, and is another event {there.id!r}. "
            f"{PUT_BACK}"
        )
