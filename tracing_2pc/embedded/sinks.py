"""Sinks of one participant without a service, written in code."""

from __future__ import annotations

from collections.abc import Sequence

from tracing_2pc.embedded.addresses import with_options
from tracing_2pc.sinks.participant_sink import ParticipantSink


class TableSink(ParticipantSink):
    """Write to a table of PostgreSQL or SQLite, without a service.

    The same as `ParticipantSink({name: "<url>?table=<table>&key=<key>"})`: rows are
    kept as by `TaggedRows`, the driver makes the tables at the start of the job, and
    each task opens the database itself. A crash of any process leaves what one behind a
    service leaves. `tracing-2pc` finds it by the address in the setting `participants`.

    Args:
        url: `postgresql://user@host/database`, with options of libpq, or
            `sqlite:///folder/file.db`. No password in it.
        table: what readers SELECT from.
        key: column or columns that identify a row, as for `TaggedRows`.
        name: the participant's; by default the table's.
        timeout: seconds that a list of branches in doubt may take.

    Raises:
        ConfigurationError: a wrong URL, option or name, or a package that is not there.
    """

    def __init__(
        self,
        url: str,
        table: str,
        *,
        key: str | Sequence[str] = (),
        name: str | None = None,
        timeout: float = 5.0,
    ) -> None:
        keys = (key,) if isinstance(key, str) else key
        options = {"table": table}
        if keys:
            options["key"] = ",".join(keys)
        address = with_options(url, options)
        super().__init__({name or table: address}, token=None, timeout=timeout)
