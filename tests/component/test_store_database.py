"""Where a decision log may be, and what its address may hold."""

from __future__ import annotations

import sqlite3

import psycopg
import psycopg.errors
import pytest
import sqlalchemy as sa
from support.texts import texts

from tracing_2pc.core.errors import ConfigurationError, DecisionLogError
from tracing_2pc.store import SqlDecisionLog, open_log
from tracing_2pc.store.engines import database as engines
from tracing_2pc.store.log import database

TEXTS = texts("component")


SECRET = [
    "postgresql://tpc:s3cret@db/decisions",
    "postgresql+psycopg://tpc:s3cret@db/decisions",
    "postgresql://tpc@db/decisions?password=s3cret",
    "postgresql://tpc@db/decisions?password=other&password=s3cret",
    "postgresql://tpc@db/decisions?sslmode=require&sslpassword=s3cret",
]


@pytest.mark.parametrize("url", SECRET)
def test_a_literal_password_is_refused(url):
    """It would be pickled into files and pages; the error says what to write."""
    with pytest.raises(ConfigurationError) as refused:
        open_log(url)
    assert "`env:NAME`" in str(refused.value)
    assert "password file" in str(refused.value)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("url", SECRET)
def test_a_password_from_the_environment_is_taken_and_never_shown(monkeypatch, url):
    """Nor repeated, whatever text comes with the failure to connect."""
    monkeypatch.setenv("LOG_URL", url)
    base = database.connect("env:LOG_URL")
    assert "s3cret" in base.url.render_as_string(hide_password=False)
    assert "s3cret" not in repr(base) + repr(SqlDecisionLog(base))

    def fail(*_: object, **__: object) -> None:
        raise psycopg.OperationalError("no way in for tpc with s3cret\nHINT: s3cret")

    monkeypatch.setattr("tracing_2pc.store.engines.sessions.Session.connect", fail)
    with pytest.raises(DecisionLogError, match=r"for tpc with \*\*\*$") as failed:
        SqlDecisionLog(base).unfinished()
    assert "s3cret" not in str(failed.value)


def test_an_error_of_a_statement_quotes_no_row(tmp_path):
    """It is logged with its stack, and what a statement writes is somebody's data."""
    base = database.connect(f"sqlite:///{tmp_path / 'log.db'}")
    row = {"name": "Ada Lovelace"}
    with (
        pytest.raises(sa.exc.OperationalError) as failed,
        base.engine.begin() as sql,
    ):
        sql.execute(sa.text("INSERT INTO nowhere VALUES (:name)"), row)
    assert "nowhere" in str(failed.value)
    assert "Ada" not in str(failed.value)


def test_postgresql_means_psycopg_3():
    """Whatever driver the URL's short form means elsewhere."""
    base = database.connect("postgresql://tpc@db/decisions")
    assert base.engine.driver == "psycopg"


@pytest.mark.parametrize(
    "url", ["", "decisions.db", "mysql://db/x", "postgresql+psycopg2://db/x", "env"]
)
def test_other_addresses_are_refused(url):
    """With the two that are expected."""
    with pytest.raises(ConfigurationError, match=r"sqlite:///.*postgresql://"):
        open_log(url)


def test_an_empty_variable_is_named(monkeypatch):
    """`env:NAME` without a value says which name."""
    monkeypatch.delenv("LOG_URL", raising=False)
    with pytest.raises(
        ConfigurationError, match=TEXTS["empty variable"].format(variable="LOG_URL")
    ):
        open_log("env:LOG_URL")


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///file:x"])
def test_memory_is_not_a_log(url):
    """It would forget decisions with its process."""
    with pytest.raises(ConfigurationError, match=TEXTS["no memory"]):
        open_log(url)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    """A file stands in the way: settings to fix, not a log to wait for."""
    (tmp_path / "state").write_text("a file")
    with pytest.raises(ConfigurationError, match=TEXTS["no folder"]):
        open_log(f"sqlite:///{tmp_path}/state/decisions.db")


def test_a_folder_instead_of_a_file_is_unreachable(tmp_path):
    """The database says why."""
    with pytest.raises(DecisionLogError, match="unable to open database file"):
        open_log(f"sqlite:///{tmp_path}")


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (psycopg.errors.ReadOnlySqlTransaction("cannot execute"), "is read-only"),
        (psycopg.errors.DiskFull("could not extend file"), "has no room left"),
        (sqlite3.OperationalError("database or disk is full"), "has no room left"),
        (psycopg.errors.TooManyConnections("x"), "takes no more connections"),
        (
            psycopg.OperationalError("FATAL: sorry, too many clients already"),
            "takes no more connections",
        ),
        (psycopg.errors.CannotConnectNow("starting"), "is being started"),
        (psycopg.OperationalError('server at "read-only.pg": refused'), None),
        (psycopg.OperationalError('FATAL: no role "read-only"'), None),
        (psycopg.errors.CheckViolation("a row says: disk is full"), None),
    ],
)
def test_a_caller_is_told_why_a_database_does_not_serve(error, cause):
    """From a closed list: never an address, a name or what a record has."""
    wrapped = sa.exc.OperationalError("COPY", None, error)
    told = engines.describe_not_now(wrapped)
    assert (told is None) is (cause is None)
    assert cause is None or str(told).startswith(cause)
