"""Sinks of one participant without a service, written in code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from tracing_2pc.core.settings import adds_columns
from tracing_2pc.embedded.addresses import with_options
from tracing_2pc.sinks.participant_sink import ParticipantSink


class TableSink(ParticipantSink):
    """Write to a table of PostgreSQL or SQLite, without a service.

    The same as `ParticipantSink({name: "<url>?table=<table>&key=<key>"})`: rows are
    kept as by `TaggedRows`, the driver makes the tables at the start of the job, and
    each task opens the database itself. A crash of any process leaves the same as with
    a service. `tracing-2pc` finds it by the address in the setting `participants`.

    Args:
        url: `postgresql://user@host/database`, with options of libpq, or
            `sqlite:///folder/file.db`. No password in it.
        table: that readers SELECT from.
        key: column or columns that identify a row, as for `TaggedRows`.
        deleted: boolean column; a row in which it is true hides its key, as for
            `TaggedRows`.
        evolve: with "add" a column that a batch has and the table has not is added, as
            by `TaggedRows`.
        name: the participant's; by default the table's.
        timeout: seconds without a sign of life after which a database does not answer,
            and that a list of branches in doubt may take.

    Raises:
        ConfigurationError: a wrong URL, option or name, or a package that is not there.
    """

    def __init__(
        self,
        url: str,
        table: str,
        *,
        key: str | Sequence[str] = (),
        deleted: str | None = None,
        evolve: Literal["add"] | None = None,
        name: str | None = None,
        timeout: float = 5.0,
    ) -> None:
        grows = {"evolve": "add"} if adds_columns(evolve) else {}
        options = {"table": table, **_listed(key=key, deleted=deleted or ""), **grows}
        address = with_options(url, options)
        super().__init__({name or table: address}, token=None, timeout=timeout)


class TopicSink(ParticipantSink):
    """Publish to a topic of Kafka, or a queue of ActiveMQ, without a service.

    The same as `ParticipantSink({name: "<url>?outbox=<outbox>&key=<key>"})`. A batch's
    messages are durable and invisible in the outbox, tables of a database, until the
    commit; then they are published in one transaction of the broker, in order, by the
    driver of `foreachBatch`, by `tracing-2pc recover`, or by `watch --recover`. After a
    crash of any of them the next one goes on; readers with
    `isolation.level=read_committed` see each record once. The driver makes the outbox's
    tables, and a topic that is not there as long as nothing was published.

    An option that is no text, as a function for the topic, or Avro, needs `Outbox(url,
    KafkaRelay(...))` in a module, by an address `python:`.

    Args:
        url: `kafka://host:port/topic`, or `activemq://host:port/queue`; several brokers
            with commas. Options with a dot are librdkafka's (`sasl.username`), for
            ActiveMQ there are `user`, `password` and `ca`. A secret is a reference,
            `env:NAME` or `file:PATH`.
        outbox: `postgresql://user@host/database`, without a password, or
            `sqlite:///folder/file.db`, or `file:PATH` of a file that holds it.
        key: column whose text is the key.
        headers: columns whose texts are headers.
        tombstone: boolean column, at Kafka; a row in which it is true deletes its key:
            it is sent with the key and without a value. Needs `key`, and a topic whose
            `cleanup.policy` is compact.
        allow_uncompacted: send tombstones to another topic, too.
        prefix: of the outbox's tables; by default scheme and topic. An outbox belongs
            to one broker.
        name: the participant's; by default the topic's.
        timeout: seconds that a list of branches in doubt may take.

    Raises:
        ConfigurationError: a wrong URL, option or name, or a package that is not there.
    """

    def __init__(
        self,
        url: str,
        *,
        outbox: str,
        key: str | None = None,
        headers: Sequence[str] = (),
        tombstone: str | None = None,
        allow_uncompacted: bool = False,
        prefix: str | None = None,
        name: str | None = None,
        timeout: float = 5.0,
    ) -> None:
        given = {
            "outbox": outbox,
            "key": key,
            "tombstone": tombstone,
            "allow_uncompacted": "true" if allow_uncompacted else None,
            "prefix": prefix,
        }
        options = {name: value for name, value in given.items() if value}
        address = with_options(url, {**options, **_listed(headers=headers)})
        topic = url.partition("?")[0].rpartition("/")[2]
        super().__init__({name or topic: address}, token=None, timeout=timeout)


def _listed(**options: str | Sequence[str]) -> dict[str, str]:
    """Return options that are lists, those that are not empty."""
    return {
        name: value if isinstance(value, str) else ",".join(value)
        for name, value in options.items()
        if value
    }
