"""What a ledger on PostgreSQL has stored: counted, then removed."""

from __future__ import annotations


def check_and_empty(url: str, rows: int, shown: str, stored: str) -> None:
    """See that the rows are there, and remove them: an arm that stores nothing is fast.

    Raises:
        RuntimeError: there are more or fewer.
    """
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        ((count,),) = connection.execute(f"SELECT count(*) FROM {shown}").fetchall()
        if count != rows:
            raise RuntimeError(f"{shown} has {count} of {rows} rows")
        connection.execute(f"TRUNCATE {stored}")


LEDGER = ("flights_daily", "flights_daily_tpc")
"""The view that readers of a ledger have, and the table that it keeps."""
