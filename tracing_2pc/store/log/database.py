"""Where a decision log is, and how it is opened."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tracing_2pc.core.errors import ConfigurationError, DecisionLogError
from tracing_2pc.core.settings import LOG_LOCK_WAIT
from tracing_2pc.store.engines.database import Database
from tracing_2pc.store.engines.opening import open_database
from tracing_2pc.store.engines.urls import database_url, display_url, missing_file
from tracing_2pc.store.log import schema
from tracing_2pc.store.log.decision_log import SqlDecisionLog


def connect(
    reference: str, *, must_exist: bool = False, lock_wait: float = LOG_LOCK_WAIT
) -> Database:
    """Prepare the connections for a URL or `env:NAME`; opens none yet.

    Their errors are `DecisionLogError`, without any password of the URL. `lock_wait` is
    in seconds.

    Raises:
        ConfigurationError: not a URL of ours, one with a literal password, or, if it
            must exist, a SQLite file that does not.
    """
    url = database_url(reference, "log")
    if must_exist and (missing := missing_file(url)) is not None:
        raise ConfigurationError(missing_log(missing))
    database = open_database(url, "log", lock_wait=lock_wait, failure=_failure)
    folder = Path(url.database or "").parent
    try:
        if url.get_backend_name() == "sqlite":
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"log: cannot make folder {folder}: {error.strerror}"
        ) from None
    return database


def open_log(
    reference: str,
    *,
    must_exist: bool = False,
    may_be_down: bool = False,
    now: Callable[[], float] = time.time,
) -> SqlDecisionLog:
    """Open the decision log, making it (and a SQLite file's folder) where missing.

    Args:
        reference: `sqlite:///folder/decisions.db`, `postgresql://user@host/database`
            (psycopg 3), or `env:NAME` of a variable that holds one. Only the URL of
            such a variable may hold a password.
        must_exist: make nothing, and refuse a log that is not there: an empty one
            would report that all is well.
        may_be_down: return a log that must exist even if it cannot be reached.
        now: Unix seconds, for the times on record.

    Raises:
        ConfigurationError: not such a URL, a log made by a newer release, or none
            where one must exist.
        DecisionLogError: it cannot be reached.
    """
    database = connect(reference, must_exist=must_exist)
    log = SqlDecisionLog(database, now=now)
    try:
        if not must_exist:
            log.create()
        elif not schema.exists(database):
            raise ConfigurationError(missing_log(database.address))
    except BaseException as error:
        if must_exist and may_be_down and isinstance(error, DecisionLogError):
            return log
        log.close()
        raise
    return log


def _failure(text: str, *, says_cure: bool) -> DecisionLogError:
    return DecisionLogError(f"decision log {text}", says_cure=says_cure)


def missing_log(address: str) -> str:
    """Return the message that there is no log where one is expected."""
    return (
        f"there is no decision log at {address}: look at --log, TPC_LOG and `log` in "
        "tpc.toml; a job or `tracing-2pc init` makes one"
    )


def display_log(reference: str) -> str:
    """Return a log's address as it may be shown, or raise `ConfigurationError`."""
    if reference.startswith("env:"):
        return reference
    return display_url(database_url(reference, "log"))
