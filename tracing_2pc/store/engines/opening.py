"""Which database an address names."""

from __future__ import annotations

import sqlalchemy as sa

from tracing_2pc.store.engines.database import Database, Failure
from tracing_2pc.store.engines.postgresql import PostgreSQL
from tracing_2pc.store.engines.sqlite import SQLite


def open_database(
    url: sa.URL,
    setting: str,
    *,
    lock_wait: float,
    failure: Failure | None = None,
    **pool: int,
) -> Database:
    """Prepare the connections to a database; opens none yet. Arguments as of `SQLite`.

    Raises:
        ConfigurationError: a database that cannot be used, or its driver is missing.
    """
    kind = PostgreSQL if url.get_backend_name() == "postgresql" else SQLite
    return kind(url, setting, lock_wait=lock_wait, failure=failure, **pool)
