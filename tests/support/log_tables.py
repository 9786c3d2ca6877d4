"""What the tables of a decision log hold, and how they are read."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from tracing_2pc.store import SqlDecisionLog
from tracing_2pc.store.engines.database import Database


def explain(base: Database, statement: sa.Executable, values: dict[str, Any]) -> str:
    """Return the plan of a statement, as text."""
    sqlite = base.url.get_backend_name() == "sqlite"
    verb = "EXPLAIN QUERY PLAN" if sqlite else "EXPLAIN"

    def ask(_: object, __: object, text: str, parameters: Any, *___: object) -> Any:
        asked = text if text.startswith("BEGIN") else f"{verb} {text}"
        return asked, parameters

    with base.reading() as connection:
        sa.event.listen(connection, "before_cursor_execute", ask, retval=True)
        return "\n".join(map(str, connection.execute(statement, values).all()))


def count_committed(log: SqlDecisionLog, application: str) -> int:
    """Count the transactions of an application that are committed everywhere."""
    statement = sa.text(
        "SELECT count(*) FROM tpc_transaction WHERE application = :of"
        " AND state = 'committed'"
    )
    with log._database.reading() as connection:
        return int(connection.scalar(statement, {"of": application}) or 0)
