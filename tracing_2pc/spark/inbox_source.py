"""A Spark source: `spark.readStream.format("tpc_inbox")` reads the events of an inbox.

The driver plans ranges of positions, which stand in the checkpoint; tasks read them. A
range has the same events whenever it is read, so a batch that Spark replays is the same
batch.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.settings import check_name
from tracing_2pc.inbox import Event, Inbox, Offset
from tracing_2pc.inbox.changed import InboxChangedError

try:
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceStreamReader,
        InputPartition,
    )
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:
    raise ConfigurationError(
        "the source of an inbox needs PySpark 4.2 or newer, whose sources know limits"
    ) from None

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit

_OPTIONS: Final = frozenset(
    ("url", "name", "reader", "maxeventspertrigger", "startingoffsets", "partitions")
)

_PAGE: Final = 5_000
"""Events that a task reads at once."""

_SCHEMA: Final = pa.schema(
    [
        ("position", pa.int64()),
        ("id", pa.string()),
        ("producer", pa.string()),
        ("body", pa.string()),
        ("time", pa.timestamp("us", tz="UTC")),
        ("carrier", pa.map_(pa.string(), pa.string())),
    ]
)

_COLUMNS: Final = (
    "position BIGINT, id STRING, producer STRING, body STRING, time TIMESTAMP, "
    "carrier MAP<STRING, STRING>"
)


class InboxSource(DataSource):  # type: ignore[misc]
    """Read an inbox's events, each once, in order of position.

    Register it with `spark.dataSource.register(InboxSource)`. Columns are `position`,
    `id`, `producer`, `body` (JSON as it was written), `time` (of its arrival) and
    `carrier` (the trace context that it came with).

    The last event read is in the checkpoint, as position and id. Events are kept until
    every reader has committed them, and for the inbox's `keep` after that, so a
    checkpoint may go back that far. A start below the events kept, or an inbox that is
    another one or was put back, ends the query with a message; it never skips events
    silently.

    Options: `url`, the inbox's database, as for `Inbox`; executors read it, too.
    `reader`, the name of this query at the inbox: one query, one name, for ever.
    `name` of the inbox, by default *events*. `maxEventsPerTrigger`, by default all.
    `startingOffsets`, *earliest* (default) or *latest*: the begin of a new query.
    `partitions`, by default 2: tasks that read a large batch.

    Raises:
        ConfigurationError: an option that is missing, unknown or wrong.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "tpc_inbox"

    def schema(self) -> str:
        """Return the columns."""
        return _COLUMNS

    def streamReader(self, schema: Any) -> InboxReader:  # noqa: N802
        """Return the reader. Spark calls this in several processes."""
        return InboxReader(_read_options(self.options))


@dataclasses.dataclass(frozen=True)
class _Options:
    url: str
    name: str
    reader: str
    most: int | None
    newest: bool
    partitions: int


@dataclasses.dataclass
class _Range(InputPartition):  # type: ignore[misc]
    after: Offset
    through: Offset


class InboxReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Plans ranges of positions in the driver, and reads them in tasks."""

    def __init__(self, options: _Options) -> None:
        self._options = options
        self._is_known = False
        self._target: Offset | None = None

    @property
    def _inbox(self) -> Inbox:
        return _inbox_at(self._options.url, self._options.name)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a new query begins."""
        options, inbox = self._options, self._inbox
        with inbox.translated():
            return _to_spark(inbox.begin(options.reader, newest=options.newest))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the number of events that a batch may have."""
        most = self._options.most
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read up to the newest event now, and end."""
        inbox = self._inbox
        with inbox.translated():
            self._target = inbox.end()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch; the first call makes the reader known."""
        inbox, after = self._inbox, _from_spark(start)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else sys.maxsize
        with inbox.translated():
            if not self._is_known:
                inbox.join(self._options.reader, after)
                self._is_known = True
            end = inbox.offset_at(after, most)
        if self._target is not None and end.position > self._target.position:
            end = max(self._target, after)
        return _to_spark(end)

    def partitions(
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> Sequence[InputPartition]:
        """Return ranges of about equal size, and at least a page where that is less."""
        first, last = _from_spark(start), _from_spark(end)
        count = last.position - first.position
        if not count:
            return []
        if count < 0:
            raise InboxChangedError(
                f"inbox {self._options.name}: the batch ends at {last.position}, and "
                f"begins at {first.position}: reader {self._options.reader} was "
                "retired, or is another query's, too"
            )
        size = max(-(-count // self._options.partitions), min(count, 1_000))
        inner = range(first.position + size, last.position, size)
        ends = [*(first._replace(position=n, id="", digest="") for n in inner), last]
        return [
            _Range(after, through)
            for after, through in zip([first, *ends], ends, strict=False)
        ]

    def read(self, partition: _Range) -> Iterator[pa.RecordBatch]:
        """Read a range, page by page.

        Raises:
            InboxChangedError: its events are not there any more.
        """
        inbox, after = self._inbox, partition.after
        while after.position < partition.through.position:
            with inbox.translated():
                events = inbox.read(after, partition.through, _PAGE)
            yield _batch(events)
            after = after._replace(position=events[-1].position, id="", digest="")

    def commit(self, end: dict[str, Any]) -> None:
        """Report this reader's position to the inbox."""
        inbox = self._inbox
        with inbox.translated():
            inbox.confirm(self._options.reader, _from_spark(end))

    def stop(self) -> None:
        """Release connections."""
        self._inbox.close()


@functools.lru_cache(4)
def _inbox_at(url: str, name: str) -> Inbox:
    """Return the inbox that this process reads: one for all tasks of a worker."""
    return Inbox(url, name, must_exist=True)


def _read_options(options: Mapping[str, str]) -> _Options:
    given = {name.lower(): value for name, value in options.items()}
    if unknown := sorted(given.keys() - _OPTIONS):
        raise ConfigurationError(f"option {unknown[0]}: an inbox has none of this name")
    for name in ("url", "reader"):
        if not given.get(name):
            raise ConfigurationError(f'option {name} is missing: .option("{name}", …)')
    starting = given.get("startingoffsets", "earliest")
    if starting not in {"earliest", "latest"}:
        raise ConfigurationError(
            f"option startingOffsets: {starting!r} is neither earliest nor latest"
        )
    try:
        reader = check_name(given["reader"], "reader")
    except ValueError as error:
        raise ConfigurationError(f"option reader: {error}") from None
    most = given.get("maxeventspertrigger")
    return _Options(
        given["url"],
        given.get("name", "events"),
        reader,
        None if most is None else _count("maxEventsPerTrigger", most),
        starting == "latest",
        _count("partitions", given.get("partitions", "2")),
    )


def _count(name: str, text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ConfigurationError(f"option {name}: {text!r} is no number above 0")
    return int(text)


def _to_spark(offset: Offset) -> dict[str, Any]:
    return offset._asdict()


def _from_spark(offset: Mapping[str, Any]) -> Offset:
    try:
        position, id_ = int(offset["position"]), str(offset["id"])
        digest = str(offset.get("digest", ""))
        return Offset(position, id_, str(offset["inbox"]), digest)
    except (KeyError, TypeError, ValueError):
        raise InboxChangedError(
            "the checkpoint is another source's: give this query one of its own"
        ) from None


def _batch(events: Sequence[Event]) -> pa.RecordBatch:
    utc = datetime.timezone.utc
    columns = (
        [event.position for event in events],
        [event.id for event in events],
        [event.producer for event in events],
        [event.body for event in events],
        [datetime.datetime.fromtimestamp(event.at, utc) for event in events],
        [list(event.carrier.items()) for event in events],
    )
    arrays = [
        pa.array(values, field.type)
        for values, field in zip(columns, _SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
