"""A durable inbox: events with ids, in the order in which they were committed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Connection

from tracing_2pc.core.errors import ConfigurationError, RefusalError, TwoPhaseError
from tracing_2pc.core.failpoints import failpoint
from tracing_2pc.core.settings import LOCK_WAIT, check_name, seconds
from tracing_2pc.core.states import Refusal
from tracing_2pc.inbox.changed import PUT_BACK, InboxChangedError, raise_if_changed
from tracing_2pc.inbox.event import Event, NewEvent, Offset, Stored
from tracing_2pc.inbox.placing import Answer, Request, lacking, place_all
from tracing_2pc.inbox.shared_flush import FullError, SharedFlush
from tracing_2pc.inbox.tables import (
    IDS,
    KEEP,
    MANY,
    PORTION,
    InboxTables,
    Key,
    appended,
)
from tracing_2pc.store.engines.database import Database
from tracing_2pc.store.engines.opening import open_database
from tracing_2pc.store.engines.urls import database_url, missing_file

_MOST_PORTIONS: Final = 50
"""That one confirmation deletes: more than a batch brings."""

logger = logging.getLogger(__name__)

AlsoDo = Callable[[Connection, str, Sequence[NewEvent]], None]
"""A caller's own work in the transaction that stores new events of a producer."""


class BusyError(RefusalError):
    """As many requests wait as may: nothing was done for this one."""


class Inbox:
    """Keeps events until every reader has committed them, each id once.

    Events for which `store` returned are on disk, each at one position for ever:
    positions are in the order of commits, so that a reader that has read up to one
    never finds another event below it. A crash at any moment loses none of them; about
    others the caller knows nothing, and sends them again: the same id with the same
    content is stored once. That holds for `ids`, which is longer than events are kept.

    Times are by the clocks of readers that confirm, in PostgreSQL by the database's if
    that is earlier. A confirmation deletes by the time of one some time before it, a
    50th of `keep` or a 5,000th of `ids`, whichever is longer, half a day at most: so a
    step forward deletes nothing before another confirmation has it, too. After a step
    back, and when the time comes to where it was, `keep` and `ids` begin again; while
    clocks of readers differ by more than that, nothing may be deleted.

    Args:
        url: database URL of PostgreSQL or SQLite, or `env:NAME`.
        name: prefix of the tables; one per inbox in a database.
        keep: how long events are kept after every reader has committed them, as `7d`,
            the default of a new inbox; from Python, seconds, too. The longest that
            any process asks for is on record, for all.
        ids: how long ids are kept after that, by default 90 days; in the same way. A
            repeat that comes later is stored again.
        must_exist: make nothing: for readers. `keep` and `ids` have no effect.
        most_waiting: requests that wait for a flush in a process; more are refused.
        clock: Unix seconds.

    Raises:
        ConfigurationError: not such a URL, a wrong name, or `ids` below `keep`; at the
            first use, that a newer release made it, or a version before the first one;
            with `must_exist`, that there is none.
    """

    def __init__(
        self,
        url: str,
        name: str = "events",
        *,
        keep: str | float | None = None,
        ids: str | float | None = None,
        must_exist: bool = False,
        most_waiting: int = 256,
        clock: Callable[[], float] = time.time,
    ) -> None:
        try:
            self.name = check_name(name, "inbox")
            asked = {"keep": keep, "ids": ids}.items()
            self._times = {name: seconds(t) for name, t in asked if t is not None}
        except ValueError as error:
            raise ConfigurationError(f"inbox: {error}") from None
        _check_times(**{"keep": KEEP, "ids": IDS, **self._times})
        self._must_exist = must_exist
        self._tables = InboxTables(name)
        self._database = _open(url)
        self._is_server = self._database.url.get_backend_name() == "postgresql"
        self._clock = clock
        self._is_open = False
        self._flush: SharedFlush[Request, Answer] = SharedFlush(
            self._store_together, most_waiting
        )

    @property
    def address(self) -> str:
        """The database's address as it may be shown."""
        return self._database.address

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise the database's errors as `TwoPhaseError`, in one line."""
        try:
            yield
        except sa.exc.SQLAlchemyError as error:
            text = self._database.describe(error)
            raise TwoPhaseError(f"inbox {self.name}: {text}") from None

    def open(self) -> None:
        """Make the tables that are missing, unless they must exist."""
        if self._is_open:
            return
        if self._must_exist:
            self._find()
            return
        with self._database.setup() as connection:
            head = self._tables.make(connection, self._times)
        if any(getattr(head, name) > time for name, time in self._times.items()):
            logger.warning(
                "inbox %s keeps events for %.0f s and ids for %.0f s: longer than this "
                "process asks for. `tracing-2pc inbox keep` shortens it, for all",
                self.name,
                head.keep,
                head.ids,
            )
        self._is_open = True

    def _find(self) -> None:
        is_there = missing_file(self._database.url) is None
        if is_there:
            with self._database.read() as connection:
                is_there = self._tables.exists(connection)
        if not is_there:
            raise ConfigurationError(
                f"there is no inbox {self.name} at {self.address}: look at its url and "
                "name; the gateway makes it"
            )
        self._is_open = True

    def times(self) -> tuple[float, float]:
        """Return for how many seconds events and ids are kept."""
        self.open()
        with self._database.read() as connection:
            head = self._tables.head_of(connection)
        return head.keep, head.ids

    def set_times(self, keep: float, ids: float) -> None:
        """Keep events and ids for so many seconds, or less than before.

        Raises:
            ConfigurationError: `ids` is below `keep`.
        """
        _check_times(keep, ids)
        self.open()
        with self._database.write() as connection:
            self._tables.set_times(connection, keep, ids)

    def close(self) -> None:
        """Release connections. Nothing is lost if it is never called."""
        self._database.close()

    # --- storing ---------------------------------------------------------------------

    def store(
        self, producer: str, events: Sequence[NewEvent], also: AlsoDo | None = None
    ) -> list[Stored]:
        """Store a producer's events durably, all of them or none.

        Requests that wait at the same time are stored in one flush.

        Args:
            producer: their sender; ids are unique by producer.
            events: one that is repeated among them is stored once, too.
            also: called in the same transaction with the new events, if there are any;
                then they share no flush, and others wait meanwhile.

        Raises:
            RefusalError: conflict: an id is there with other content, and nothing was
                stored; not now: too many wait (`BusyError`), or it is unknown whether
                it was stored: send it again.
            SQLAlchemyError: the database does not answer: send it again. Where a
                request that shared the flush had to be stored by itself, this one may
                be stored.
        """
        self.open()
        if also is not None:
            return self._store_alone(producer, events, also)
        try:
            answer = self._flush.add([(producer, event) for event in events])
        except FullError:
            detail = f"inbox {self.name}: too many requests wait: send it again later"
            raise BusyError(Refusal.NOT_NOW, detail) from None
        if isinstance(answer, RefusalError):
            raise answer
        return answer

    def _store_together(self, requests: list[Sequence[Request]]) -> list[Answer]:
        try:
            return self._store_new(requests) or self._store_looking(requests)
        except sa.exc.DataError:
            # A text that this database lacks: only who brought it is told.
            if len(requests) == 1:
                return [lacking()]
            return [self._store_together([request])[0] for request in requests]

    def _store_new(self, requests: list[Sequence[Request]]) -> list[Answer] | None:
        """Fast path: insert, assuming that all ids are new.

        In PostgreSQL that is one round trip. Returns None if nothing was stored; the
        caller then looks the ids up.
        """
        if not self._is_server:
            return None
        answers, added = place_all(requests, {}, 0)
        placed = [a for a in answers if not isinstance(a, RefusalError)]
        if len(placed) < len(answers):
            return None
        now = self._clock()
        try:
            if len(added) < MANY:
                failpoint("inbox.before_commit")
                values, unanswered = appended(now, added), self._unanswered
                append = self._tables.append
                (row,) = self._database.write_one(append, values, unanswered=unanswered)
                before = row.before
                failpoint("inbox.after_commit")
            else:
                with self._writing() as connection:
                    before = self._tables.add_events(connection, now, added)
        except sa.exc.IntegrityError:
            return None
        return [[s._replace(position=before + s.position) for s in p] for p in placed]

    def _store_looking(self, requests: list[Sequence[Request]]) -> list[Answer]:
        with self._writing() as connection:
            answers, _ = self._add(connection, requests)
        return answers

    def _store_alone(
        self, producer: str, events: Sequence[NewEvent], also: AlsoDo
    ) -> list[Stored]:
        request = [(producer, event) for event in events]
        with self._writing() as connection:
            try:
                (answer,), added = self._add(connection, [request])
            except sa.exc.DataError:
                raise lacking() from None
            if isinstance(answer, RefusalError):
                raise answer
            if added:
                also(connection, producer, added)
        return answer

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        # With BEGIN, in PostgreSQL; SQLite's has the lock already.
        lock = (self._tables.locked_position,) if self._is_server else ()
        unanswered = self._unanswered
        with self._database.write(*lock, unanswered=unanswered) as connection:
            yield connection
            failpoint("inbox.before_commit")
        failpoint("inbox.after_commit")

    def _unanswered(self, cause: str) -> RefusalError:
        logger.warning("inbox: a commit was not answered: %s", cause)
        detail = "nobody knows whether it was stored: send it again"
        return RefusalError(Refusal.NOT_NOW, detail)

    def _add(
        self, connection: Connection, requests: list[Sequence[Request]]
    ) -> tuple[list[Answer], list[NewEvent]]:
        """Add what is new, under the head's lock; none fails another."""
        ids: dict[str, dict[str, None]] = {}
        for request in requests:
            for producer, event in request:
                ids.setdefault(producer, {})[event.id] = None
        known, last = dict[Key, tuple[str, int]](), 0
        for producer, wanted in ids.items():
            last, stored = self._tables.known(connection, producer, wanted)
            known |= stored
        answers, added = place_all(requests, known, last)
        if added:
            self._tables.add_events(connection, self._clock(), added)
        return answers, [event for _, _, event in added]

    # --- reading ---------------------------------------------------------------------

    def end(self) -> Offset:
        """Return the place after the newest event."""
        self.open()
        with self._database.read() as connection:
            head = self._tables.head_of(connection)
            return self._tables.offset_of(connection, head.position, head.inbox)

    def start(self) -> Offset:
        """Return the place before the oldest event that is kept."""
        self.open()
        with self._database.read() as connection:
            head = self._tables.head_of(connection)
            return self._tables.offset_of(connection, head.trimmed, head.inbox)

    def offset_at(self, after: Offset, most: int) -> Offset:
        """Return the place that is at most so many events further."""
        self.open()
        with self._database.read() as connection:
            head = self._tables.head_of(connection)
            self._check(connection, head, after)
            position = min(head.position, after.position + most)
            return self._tables.offset_of(connection, position, head.inbox)

    def read(
        self, after: Offset, through: Offset, most: int = 10_000, size: int = 1 << 25
    ) -> list[Event]:
        """Return events between two places, in order: the same whenever it is asked.

        At least one, if there is any; then not more than `most`, nor bodies of more
        than `size` characters together.

        Raises:
            InboxChangedError: one of the events is not there, or another one is.
        """
        self.open()
        with self._database.read() as connection:
            head = self._tables.head_of(connection)
            self._check(connection, head, after)
            self._check(connection, head, through)
            wanted = min(most, through.position - after.position)
            last = after.position + wanted
            if wanted > 0:
                fit = self._tables.fitting(connection, after.position, last, size)
                wanted = min(wanted, fit)
            events = self._tables.read(connection, after.position, last, wanted)
        if len(events) != wanted:
            raise InboxChangedError(
                f"inbox {self.name} at {self.address}: {wanted} events were after "
                f"position {after.position}, and {len(events)} are left. {PUT_BACK}"
            )
        return events

    def check(self, offset: Offset) -> None:
        """See that an inbox is the one that was read up to this place.

        Raises:
            InboxChangedError: it ends before, has another event there, or has trimmed
                what comes next.
        """
        self.open()
        with self._database.read() as connection:
            self._check(connection, self._tables.head_of(connection), offset)

    def _check(self, connection: Connection, head: Any, offset: Offset) -> None:
        there = self._tables.offset_of(connection, offset.position, head.inbox)
        raise_if_changed(f"inbox {self.name} at {self.address}", head, offset, there)

    # --- readers ---------------------------------------------------------------------

    def begin(self, reader: str, *, newest: bool = False) -> Offset:
        """Return where a query begins that has no checkpoint, and keep events for it.

        Asked again it is the same place, as long as the reader has committed nothing.
        With `newest` a reader that is known goes on where it was.
        """
        self.open()
        with self._database.write() as connection:
            self._tables.lock_head(connection)
            head = self._tables.head_of(connection)
            known = self._tables.reader_of(connection, reader)
            position = head.position if newest else head.trimmed
            if newest and known is not None:
                position = known.position
            offset = self._tables.offset_of(connection, position, head.inbox)
            self._hold(connection, reader, offset)
        return offset

    def join(self, reader: str, offset: Offset) -> None:
        """Keep events for a reader from here on.

        Raises:
            InboxChangedError: some of them are not there.
        """
        self.open()
        with self._database.write() as connection:
            self._tables.lock_head(connection)
            self._check(connection, self._tables.head_of(connection), offset)
            self._hold(connection, reader, offset)

    def _hold(self, connection: Connection, reader: str, offset: Offset) -> None:
        """Note a reader, or that one has gone back. The caller holds the head."""
        known, now = self._tables.reader_of(connection, reader), self._clock()
        if known is None:
            self._tables.add_reader(connection, reader, offset, now)
        elif offset.position < known.position:
            self._tables.move_reader(connection, reader, offset, now)
        else:
            return
        self._tables.unmark(connection, offset.position)

    def confirm(self, reader: str, offset: Offset) -> None:
        """Note that a reader has committed all events up to here, and trim.

        A clock that is wrong for a moment deletes nothing before its time.

        Raises:
            InboxChangedError: it was retired.
        """
        self.open()
        with self._database.relaxed() as connection:
            self._tables.lock_head(connection)
            now = self._tables.earlier(connection, self._clock())
            if not self._tables.move_reader(connection, reader, offset, now):
                raise InboxChangedError(
                    f"inbox {self.name} at {self.address}: reader {reader} was "
                    "retired: begin again with another name and a new checkpoint"
                )
            passed = self._tables.note_passed(connection, now)
        try:
            for _ in range(_MOST_PORTIONS):
                if passed is None or not self._trim(passed):
                    break
        except sa.exc.OperationalError as error:
            # The next one trims what is left.
            cause = self._database.describe(error)
            logger.warning("inbox: not trimmed: %s", cause)

    def readers(self) -> Sequence[Any]:
        """Return each reader, its position and when it moved last; slowest first."""
        self.open()
        with self._database.read() as connection:
            return self._tables.readers(connection)

    def retire(self, reader: str) -> bool:
        """Keep nothing for a reader any more; return whether there was one."""
        self.open()
        with self._database.write() as connection:
            return self._tables.delete_reader(connection, reader)

    def _trim(self, passed_at: float) -> bool:
        """Delete a portion of expired rows; return whether there may be more.

        Only readers' clocks count. The id of the last deleted event stays: it
        identifies an offset as one of this inbox.
        """
        tables = self._tables
        with self._database.relaxed() as connection:
            tables.lock_head(connection)  # a reader may come, or go back
            head, events = tables.head_of(connection), 0
            through = tables.passed_at(connection, passed_at - head.keep)
            if through > head.trimmed:
                events = tables.trim(connection, through)
                tables.forget_marks(connection, passed_at - head.ids)
            passed = tables.passed_at(connection, passed_at - head.ids)
            ids = tables.forget_ids(connection, min(passed, head.trimmed - 1))
        return max(events, ids) >= PORTION

    def gauges(self) -> dict[str, float]:
        """Return how many events wait for the slowest reader, and since when."""
        self.open()
        with self._database.read() as connection:
            head = self._tables.head_of(connection)
            readers = self._tables.readers(connection)
            slowest = readers[0].position if readers else head.trimmed
            oldest = self._tables.read(connection, slowest, head.position, 1)
        age = max(self._clock() - oldest[0].at, 0.0) if oldest else 0.0
        return {
            "tpc.inbox.backlog": float(head.position - slowest),
            "tpc.inbox.oldest_age": age,
        }


def _check_times(keep: float, ids: float) -> None:
    if not 0 < keep <= ids:
        raise ConfigurationError("inbox: keep= is above 0, and ids= not below it")


def _open(url: str) -> Database:
    address = database_url(url, "inbox")
    return open_database(
        address, "inbox", lock_wait=LOCK_WAIT, pool_size=4, max_overflow=12
    )
