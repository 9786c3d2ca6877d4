"""The tables of an inbox, and all of their SQL.

A session that adds events holds the head row until the commit, so positions are in the
order of commits: a reader never passes an event that is not committed yet.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects import postgresql

from tracing_2pc.core.model import carrier_from_json
from tracing_2pc.inbox.event import MAX_ID, Event, NewEvent, Offset
from tracing_2pc.store.engines.database import driver_errors
from tracing_2pc.store.engines.postgresql import FLUSHED
from tracing_2pc.store.engines.writes import supports_joined_writes
from tracing_2pc.store.kit import Schema, settled

VERSION: Final = 1
MAX_NAME: Final = 40
_DAY: Final = 86_400.0
KEEP: Final = 7 * _DAY
IDS: Final = 90 * _DAY
"""For how long events and ids are kept where nothing is said."""

PORTION: Final = 2_000
"""Rows that one transaction deletes."""

MANY: Final = 100
"""Events that are worth a COPY, which takes a round trip more for each table."""

_MARKS: Final = 50
_MOST_MARKS: Final = 5_000
"""Notes that are written in a time of `keep`, and at most in a time of `ids`."""

Key = tuple[str, str]
"""An event's producer and id."""

Placed = tuple[int, str, NewEvent]
"""A new event, its producer, and its place among those added with it: 1, 2, 3, …"""


class InboxTables(Schema):
    """The tables of one inbox: `<name>_tpc_…`."""

    def __init__(self, name: str) -> None:
        prefix = f"{name}_tpc_"
        before = f"{prefix}head"
        super().__init__(prefix, "inbox", VERSION, f"the inbox {name}", before)
        self.head = self.add(
            "inbox",
            sa.Column("position", sa.BigInteger, nullable=False),
            sa.Column("trimmed", sa.BigInteger, nullable=False),
            sa.Column("keep", sa.Float(53), nullable=False),
            sa.Column("ids", sa.Float(53), nullable=False),
        )
        self.event = self.add(
            "event",
            sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("producer", sa.String(MAX_NAME), nullable=False),
            sa.Column("id", sa.String(MAX_ID), nullable=False),
            sa.Column("body", sa.Text, nullable=False),
            sa.Column("at", sa.Float(53), nullable=False),
            sa.Column("carrier", sa.Text, nullable=False),
        )
        position = sa.Column("position", sa.BigInteger, nullable=False)
        self.key = self.add(
            "key",
            sa.Column("producer", sa.String(MAX_NAME), primary_key=True),
            sa.Column("id", sa.String(MAX_ID), primary_key=True),
            sa.Column("digest", sa.String(64), nullable=False),
            position,
            sa.Column("at", sa.Float(53), nullable=False),
        )
        sa.Index(f"{name}_tpc_key_position", position)
        self.reader = self.add(
            "reader",
            sa.Column("reader", sa.String(MAX_NAME), primary_key=True),
            sa.Column("position", sa.BigInteger, nullable=False),
            sa.Column("id", sa.String(MAX_ID), nullable=False),
            sa.Column("at", sa.Float(53), nullable=False),
        )
        self.passed = self.add(
            "passed",
            sa.Column("at", sa.Float(53), primary_key=True),
            sa.Column("position", sa.BigInteger, nullable=False),
        )

        joined = self.head.join(self.identity, sa.true())
        inbox = self.identity.c.id.label("inbox")
        self._head = sa.select(*settled(self.head), inbox).select_from(joined)
        self._lock = sa.select(self.head.c.position).with_for_update()
        c, ids = self.key.c, sa.bindparam("ids", type_=sa.Text)
        listed = sa.select(sa.func.json_array_elements_text(_as_json(ids)))
        array = sa.func.array(listed.scalar_subquery())
        items = sa.select(sa.column("value", sa.Text)).select_from(
            sa.func.json_each(ids)
        )
        asked = sa.select(self.head.c.position, c.id, c.digest, c.position)
        mine = c.producer == sa.bindparam("of")
        self._known = {
            name: asked.select_from(self.head.outerjoin(self.key, mine & among))
            for name, among in (
                ("postgresql", c.id == sa.func.any(array)),
                ("sqlite", c.id.in_(items)),
            )
        }
        dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
        self.locked_position = f"({self._lock.compile(dialect=dialect)})"
        count = sa.bindparam("count", type_=sa.BigInteger)
        moved = self.head.update().values(position=self.head.c.position + count)
        self._moved = moved.returning((self.head.c.position - count).label("before"))
        self.append = self._append()

    def _append(self) -> sa.Select[Any]:
        """Return what adds a JSON list of new events; it selects the position before.

        One statement for PostgreSQL. An id that is there already ends it.
        """
        head = self._moved.cte("head")
        event, key = self.event.c, self.key.c
        given = [
            sa.column("place", sa.BigInteger),
            *(sa.column(c.name, c.type) for c in (key.producer, key.id, key.digest)),
            *(sa.column(c.name, c.type) for c in (event.body, event.carrier)),
        ]
        events = _as_json(sa.bindparam("events", type_=sa.Text))
        rows = sa.func.json_to_recordset(events).table_valued(*given)
        rows = rows.render_derived(name="rows", with_types=True)
        added = {
            **{c.name: c for c in rows.c},
            "position": head.c.before + rows.c.place,
            "at": sa.bindparam("on", type_=sa.Float(53)),
        }
        inserts = []
        for table in (self.key, self.event):
            names = [column.name for column in settled(table)]
            values = sa.select(*(added[name] for name in names)).select_from(
                head.join(rows, sa.true())
            )
            insert = table.insert().from_select(names, values)
            inserts.append(insert.cte(f"add_{table.name}"))
        return sa.select(head.c.before, sa.text(FLUSHED)).add_cte(*inserts)

    def make(self, connection: Connection, asked: Mapping[str, float]) -> Any:
        """Make what is missing; return the head. The caller excludes other creators.

        `keep` and `ids` that are asked for hold, if they are not shorter than before.

        Raises:
            ConfigurationError: as `Schema.exists`.
        """
        self.create(connection)
        head = connection.execute(self._head).one_or_none()
        if head is None:
            first = {"position": 0, "trimmed": 0, "keep": KEEP, "ids": IDS, **asked}
            connection.execute(self.head.insert().values(first))
        else:
            keep = max(head.keep, asked.get("keep", 0.0))
            ids = max(head.ids, asked.get("ids", 0.0), keep)
            if (keep, ids) != (head.keep, head.ids):
                self.set_times(connection, keep, ids)
        return self.head_of(connection)

    def set_times(self, connection: Connection, keep: float, ids: float) -> None:
        """Set for how long events and ids are kept."""
        connection.execute(self.head.update().values(keep=keep, ids=ids))

    # --- writing ---------------------------------------------------------------------

    def lock_head(self, connection: Connection) -> int:
        """Keep others from adding events until the commit; return the last position."""
        return int(connection.execute(self._lock).scalar_one())

    def known(
        self, connection: Connection, producer: str, ids: Collection[str]
    ) -> tuple[int, dict[Key, tuple[str, int]]]:
        """Return the last position, and those of a producer's ids that are there.

        With digest and position of each.
        """
        values = {"of": producer, "ids": _json(list(ids))}
        asked = self._known[connection.dialect.name]
        rows = connection.execute(asked, values).all()
        stored = {
            (producer, id_): (digest, time)
            for _, id_, digest, time in rows
            if id_ is not None
        }
        return rows[0][0], stored

    def add_events(
        self, connection: Connection, at: float, events: Sequence[Placed]
    ) -> int:
        """Add events after the last one; return the position before the first.

        Raises:
            sa.exc.IntegrityError: an id is there.
        """
        if not supports_joined_writes(connection.dialect.name):
            return self._add_one_by_one(connection, at, events)
        if len(events) < MANY:
            values = appended(at, events)
            return int(connection.execute(self.append, values).scalar_one())
        before = self._move(connection, len(events))
        self._copy(connection, at, before, events)
        return before

    def _move(self, connection: Connection, count: int) -> int:
        return int(connection.execute(self._moved, {"count": count}).scalar_one())

    def _add_one_by_one(
        self, connection: Connection, time: float, events: Sequence[Placed]
    ) -> int:
        before = self._move(connection, len(events))
        keys, kept = [], []
        for place, producer, event in events:
            named = {"producer": producer, "id": event.id, "at": time}
            named["position"] = before + place
            keys.append({**named, "digest": event.digest})
            kept.append({**named, "body": event.body, "carrier": _json(event.carrier)})
        connection.execute(self.key.insert(), keys)
        connection.execute(self.event.insert(), kept)
        return before

    def _copy(
        self, connection: Connection, time: float, before: int, events: Sequence[Placed]
    ) -> None:
        """Add many in COPY's own form, which the server reads in half of the time."""
        keys, kept, carriers = [], [], dict[int, str]()
        for place, producer, event in events:
            which = id(event.carrier)  # a request's events share one
            if which not in carriers:
                carriers[which] = _escaped(_json(event.carrier))
            name, position = f"{producer}\t{_escaped(event.id)}", before + place
            keys.append(f"{name}\t{event.digest}\t{position}\t{time!r}\n")
            body = _escaped(event.body)
            kept.append(f"{position}\t{name}\t{body}\t{time!r}\t{carriers[which]}\n")
        cursor, names = connection.connection.cursor(), connection.dialect
        with driver_errors(connection):
            for table, lines in ((self.key, keys), (self.event, kept)):
                quote = names.identifier_preparer.quote
                columns = ", ".join(quote(column.name) for column in settled(table))
                name = f"{quote(table.name)} ({columns})"
                with cursor.copy(f"COPY {name} FROM STDIN") as copy:
                    copy.write("".join(lines))

    # --- reading ---------------------------------------------------------------------

    def read(
        self, connection: Connection, after: int, through: int, most: int
    ) -> list[Event]:
        """Return events of a range of positions, in order."""
        c = self.event.c
        asked = sa.select(*settled(self.event))
        asked = asked.where(c.position > after, c.position <= through)
        rows = connection.execute(asked.order_by(c.position).limit(most))
        return [
            Event(
                row.position,
                row.id,
                row.producer,
                row.body,
                row.at,
                carrier_from_json(row.carrier),
            )
            for row in rows
        ]

    def head_of(self, connection: Connection) -> Any:
        """Return the head's row: inbox, position, trimmed."""
        return connection.execute(self._head).one()

    def offset_of(self, connection: Connection, position: int, inbox: str) -> Offset:
        """Return the place after the event at a position, as long as its id is kept."""
        asked = sa.select(*settled(self.key)).where(self.key.c.position == position)
        row = connection.execute(asked).one_or_none()
        if row is None:
            return Offset(position, "", inbox)
        event = _json([row.producer, row.id, row.digest, row.at])
        digest = hashlib.sha256(event.encode()).hexdigest()
        return Offset(position, row.id, inbox, digest)

    def fitting(
        self, connection: Connection, after: int, through: int, size: int
    ) -> int:
        """Return how many of the next events have so many characters, at least one."""
        c = self.event.c
        asked = sa.select(sa.func.length(c.body)).where(
            c.position > after, c.position <= through
        )
        lengths = connection.scalars(asked.order_by(c.position)).all()
        sums = itertools.accumulate(lengths)
        return max(1, sum(1 for total in sums if total <= size))

    def readers(self, connection: Connection) -> Sequence[Any]:
        """Return each reader's row, the slowest first."""
        c = self.reader.c
        return connection.execute(
            sa.select(*settled(self.reader)).order_by(c.position, c.reader)
        ).all()

    def reader_of(self, connection: Connection, reader: str) -> Any:
        """Return a reader's row; None if there is none."""
        asked = sa.select(*settled(self.reader)).where(self.reader.c.reader == reader)
        return connection.execute(asked).one_or_none()

    def add_reader(
        self, connection: Connection, reader: str, offset: Offset, at: float
    ) -> None:
        """Keep events for one more reader."""
        place = {"position": offset.position, "id": offset.id, "at": at}
        row = {"reader": reader, **place}
        connection.execute(self.reader.insert().values(row))

    def move_reader(
        self, connection: Connection, reader: str, offset: Offset, at: float
    ) -> bool:
        """Note how far a reader has committed; return whether there is one."""
        moved = self.reader.update().where(self.reader.c.reader == reader)
        values = {"position": offset.position, "id": offset.id, "at": at}
        return bool(connection.execute(moved.values(values)).rowcount)

    def unmark(self, connection: Connection, position: int) -> None:
        """Forget that all readers were further than this: one is not, any more."""
        self._doubt(connection, self.passed.c.position > position)

    def delete_reader(self, connection: Connection, reader: str) -> bool:
        """Forget a reader; return whether there was one."""
        mine = self.reader.c.reader == reader
        return bool(connection.execute(self.reader.delete().where(mine)).rowcount)

    # --- trimming --------------------------------------------------------------------

    def earlier(self, connection: Connection, at: float) -> float:
        """Return the earlier of a time and the database's own, which SQLite has not."""
        if connection.dialect.name != "postgresql":
            return at
        now = sa.extract("epoch", sa.func.clock_timestamp())
        return min(at, float(connection.execute(sa.select(now)).scalar_one()))

    def note_passed(self, connection: Connection, at: float) -> float | None:
        """Note how far all readers are now, once in a while.

        Return the time for trimming: that of the newest note that is a while old, so
        that a step forward is believed only with a second note; None without one. That
        covers clocks that differ by less than a while.

        A note that is later than now means that a clock is wrong, then or now. It
        stays, and claims nothing: position 0. When it is a while ago, all notes up to
        now are forgotten: they may be older than they were then.
        """
        c, head = self.passed.c, self.head_of(connection)
        every = min(max(head.keep / _MARKS, head.ids / _MOST_MARKS), _DAY / 2)
        newest = sa.select(sa.func.max(c.at))
        last = connection.scalar(newest)
        if last is not None and last > at + every:
            self._doubt(connection, c.at > at + every)
            last = connection.scalar(newest.where(c.at <= at + every))
        if last is None or at >= last + every:
            doubted = newest.where(c.position == 0, c.at <= at - every)
            if connection.scalar(doubted) is not None:
                connection.execute(self.passed.delete().where(c.at <= at))
            slowest = connection.scalar(sa.select(sa.func.min(self.reader.c.position)))
            row = {"at": at, "position": slowest}
            connection.execute(self.passed.insert().values(row))
        agreed: float | None = connection.scalar(newest.where(c.at <= at - every))
        return agreed

    def _doubt(self, connection: Connection, notes: sa.ColumnElement[bool]) -> None:
        connection.execute(self.passed.update().where(notes).values(position=0))

    def passed_at(self, connection: Connection, at: float) -> int:
        """Return which position all readers had passed at a time; 0: not known."""
        c = self.passed.c
        before = sa.select(c.position).where(c.at <= at).order_by(c.at.desc()).limit(1)
        slowest = sa.select(sa.func.min(self.reader.c.position))
        return min(connection.scalar(before) or 0, connection.scalar(slowest) or 0)

    def trim(self, connection: Connection, through: int) -> int:
        """Delete a portion of the events up to a position; return how many."""
        c = self.event.c
        oldest = sa.select(c.position).where(c.position <= through)
        some = oldest.order_by(c.position).limit(PORTION).subquery()
        last = connection.scalar(sa.select(sa.func.max(some.c.position)))
        if last is None:
            return 0
        deleted = connection.execute(self.event.delete().where(c.position <= last))
        connection.execute(self.head.update().values(trimmed=last))
        return deleted.rowcount

    def forget_ids(self, connection: Connection, through: int) -> int:
        """Delete a portion of the ids up to a position; return how many."""
        c = self.key.c
        oldest = sa.select(c.position).where(c.position <= through)
        some = oldest.order_by(c.position).limit(PORTION).scalar_subquery()
        return connection.execute(
            self.key.delete().where(c.position.in_(some))
        ).rowcount

    def forget_marks(self, connection: Connection, before: float) -> None:
        """Delete notes of readers' progress that no trim needs any more."""
        c = self.passed.c
        newest = sa.select(sa.func.max(c.at)).where(c.at <= before).scalar_subquery()
        connection.execute(self.passed.delete().where(c.at < newest))


def _as_json(text: sa.BindParameter[str]) -> sa.Cast[Any]:
    return sa.cast(text, sa.JSON)


def appended(at: float, events: Sequence[Placed]) -> dict[str, Any]:
    """Return the parameters of `append`."""
    rows = [
        {
            "place": place,
            "producer": producer,
            "id": event.id,
            "digest": event.digest,
            "body": event.body,
            "carrier": _json(event.carrier),
        }
        for place, producer, event in events
    ]
    return {"events": _json(rows), "count": len(rows), "on": at}


def _escaped(text: str) -> str:
    """Write a text as COPY reads it."""
    text = text.replace("\\", "\\\\").replace("\t", "\\t")
    return text.replace("\n", "\\n").replace("\r", "\\r")


_json: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
