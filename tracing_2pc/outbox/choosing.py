"""The parts of a record that a relay sends: destination, key and headers.

A record that cannot be sent is a vote to abort, which names record, column and cause.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from tracing_2pc.core.errors import RefusalError
from tracing_2pc.core.states import Refusal
from tracing_2pc.outbox.records import Record, plain_text_of
from tracing_2pc.outbox.relay import Message

ChooseText: TypeAlias = Callable[[Mapping[str, Any]], str | None]

Encode: TypeAlias = Callable[[Record, int, str], bytes]


class Choice:
    """Makes a message of a record: `place` and `key` may be functions of it.

    `place_named` is what the argument `place` is called where it is given. A record in
    which the boolean column `tombstone` is true has no value; in others it has all
    columns but this one.
    """

    def __init__(
        self,
        place: str | ChooseText,
        key: str | ChooseText | None,
        headers: Sequence[str],
        place_named: str,
        tombstone: str | None = None,
    ) -> None:
        self._place = place
        self._key = key
        self._headers = tuple(headers)
        self._place_named = place_named
        self._tombstone = tombstone
        self._members = {
            value: f"{json.dumps(tombstone)}: {json.dumps(value)}"
            for value in (False, None)
        }

    def message(
        self, record: Record, row: int, encode: Encode | None = None
    ) -> Message:
        """Make the message that is stored, and sent as it is; or refuse the record."""
        place = self._place
        if not isinstance(place, str):
            chosen = _chosen(place, record, row, self._place_named)
            if chosen is None:
                raise conflict(f"record {row}: {self._place_named}= returns none", "")
            place = chosen
        key = self._key
        if isinstance(key, str):
            key = _column(record, key, row, "key")
        elif key is not None:
            key = _chosen(key, record, row, "key")
        headers: list[tuple[str, str]] = []
        for name in self._headers:
            if (text := _column(record, name, row, "headers")) is not None:
                headers.append((name, text))
        if self._tombstone is not None:
            text = self._text_without(self._tombstone, record, row)
            if text is None:
                if key is None:
                    column = self._key if isinstance(self._key, str) else ""
                    raise conflict(f"record {row}: a tombstone without a key", column)
                return Message(place, key, None, tuple(headers))
            values = record.values
            if encode:
                values = {n: v for n, v in values.items() if n != self._tombstone}
            record = Record(values, text)
        value = encode(record, row, place) if encode else record.text
        return Message(place, key, value, tuple(headers))

    def _text_without(self, tombstone: str, record: Record, row: int) -> str | None:
        """Return a record as JSON without this column; None where it is true."""
        is_deleted = record.values.get(tombstone, self)
        if is_deleted is not None and not isinstance(is_deleted, bool):
            reason = "there is none" if is_deleted is self else "it is no boolean"
            raise conflict(
                f"record {row}, column {tombstone}: {reason}, tombstone= needs one"
            )
        if is_deleted:
            return None
        member, text = self._members[is_deleted], record.text
        if text.count(member) == 1:  # else another one has it, within a column
            before, _, after = text.partition(member)
            if after.startswith(", "):
                return f"{before}{after[2:]}"
            return f"{before.removesuffix(', ')}{after}"
        members = json.loads(text)
        del members[tombstone]
        return json.dumps(members)


def conflict(detail: str, column: str | None = None) -> RefusalError:
    """Return the vote to abort because something cannot be sent.

    `column` is given where one record is to blame, and may be empty.
    """
    detail = f"no message can be sent: {detail}"
    return RefusalError(Refusal.CONFLICT, detail, state="unknown", column=column)


def size_of(message: Message) -> int:
    """Return the bytes of its value, key and headers."""
    size = len(message.value or "") + len((message.key or "").encode())  # JSON is ASCII
    for text in itertools.chain(*message.headers):
        size += len(text.encode())
    return size


def longest_column(record: Record) -> str:
    """Return the column that has most of a record that is too large."""
    return max(record.values, key=lambda name: len(str(record.values[name])))


def _chosen(choose: ChooseText, record: Record, row: int, argument: str) -> str | None:
    try:
        chosen = choose(json.loads(record.text))
        if chosen is not None:
            chosen.encode()
    except Exception as error:  # noqa: BLE001 - the user's code votes no by raising
        # Its message may hold the record.
        kind = type(error).__name__
        raise conflict(f"record {row}: {argument}= raised {kind}", "") from None
    return chosen


def _column(record: Record, name: str, row: int, argument: str) -> str | None:
    """Return a column's value as text; as JSON, if it is no text."""
    try:
        value = record.values[name]
    except KeyError:
        detail = f"column {name}: there is none, {argument}= needs it"
        raise conflict(detail) from None
    if type(value) is int:
        return str(value)
    if value is None or isinstance(value, str):
        text = value
    else:
        text = json.dumps(value, default=plain_text_of)
        text = json.loads(text) if text.startswith('"') else text
    try:
        if text is not None:
            text.encode()
    except UnicodeEncodeError:
        raise conflict(f"record {row}, column {name}: no UTF-8", name) from None
    return text
