"""A sink that no executor could get is refused where the job is started."""

from __future__ import annotations

import dataclasses
import sqlite3
import threading
from collections.abc import Callable
from typing import Any

import pytest
from support.texts import texts

from tracing_2pc import ParticipantSink, traced_sink
from tracing_2pc.core.errors import ContractError
from tracing_2pc.spark import two_phase_commit
from tracing_2pc.spark.pickling import check_pickles

TEXTS = texts("sinks")


@traced_sink
class Archive:
    """What a user writes first: it is connected as soon as it is made."""

    def __init__(self, connection: Any = None, name: str | None = None) -> None:
        self.connection = connection
        if name is not None:
            self.name = name

    def begin(self) -> Any:
        return {}

    def invoke(self, handle: Any, record: Any) -> None: ...
    def pre_commit(self, handle: Any) -> None: ...
    def commit(self, handle: Any) -> None: ...
    def abort(self, handle: Any) -> None: ...


class Lazy(Archive):
    """Keeps its lock to itself."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "connection": None}


class Raising:
    """Says itself why it stays where it is."""

    def __reduce__(self) -> Any:
        raise ValueError("this is open\nand stays here")


@dataclasses.dataclass
class Pool:
    lock: Any
    size: int = 1
    sink: Any = None


@dataclasses.dataclass(slots=True)
class Slots:
    size: int
    lock: Any


def in_a_circle() -> Archive:
    """Two that know each other, and one of them keeps a lock."""
    pool = Pool(threading.Lock())
    sink = Archive(pool)
    pool.sink = sink
    pool.__dict__ = dict(reversed(pool.__dict__.items()))
    return sink


def closed_database() -> sqlite3.Connection:
    """It does not pickle, closed or not; left open, Python 3.13 warns of it."""
    connection = sqlite3.connect(":memory:")
    connection.close()
    return connection


def by_a_closure() -> Callable[[], Any]:
    lock = threading.Lock()
    return lambda: lock


UNPICKLABLE = [
    (".connection", lambda: Archive(closed_database())),
    (".connection", lambda: Archive(by_a_closure())),
    (".connection.lock", lambda: Archive(Pool(threading.Lock()))),
    (".connection.lock", lambda: Archive(Slots(1, threading.Lock()))),
    (".connection['eu'][1]", lambda: Archive({"eu": [1, threading.Lock()]})),
    (".connection.lock", in_a_circle),
]


@pytest.mark.parametrize(("attribute", "make"), UNPICKLABLE)
def test_the_attribute_that_does_not_pickle_is_named(attribute, make, tmp_path):
    """Before the log is opened, and in one line that says what to do."""
    log = tmp_path / "log.db"
    with pytest.raises(ContractError) as caught:
        two_phase_commit(make(), application="orders", log=f"sqlite:///{log}")
    (line,) = str(caught.value).splitlines()
    said = f"Archive{attribute} does not pickle (TypeError: cannot pickle"
    assert line.startswith(said)
    assert line.endswith(TEXTS["open later"])
    assert not log.exists()


def test_it_is_named_under_spark_connect_too(tmp_path, monkeypatch):
    """In the client, before it sends the callback to the server."""
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    sink, log = Archive(threading.Lock()), f"sqlite:///{tmp_path}/log.db"
    with pytest.raises(ContractError, match=TEXTS["does not pickle"]):
        two_phase_commit(sink, application="orders", log=log)


def test_what_a_class_says_itself_is_shown_on_one_line():
    """The first line of it."""
    with pytest.raises(ContractError) as caught:
        check_pickles(Archive(Raising()))
    said = "Archive.connection does not pickle (ValueError: this is open), and "
    assert str(caught.value).startswith(said)


def test_of_several_sinks_the_one_is_named(tmp_path):
    """By its participant too: two may be of one class."""
    services = ParticipantSink({"ledger": "http://127.0.0.1:1"}, token=None)
    sinks = [services, Archive(None, "one"), Archive(threading.Lock(), "two")]
    with pytest.raises(ContractError, match=r"^Archive\.connection .* sink of two "):
        two_phase_commit(
            sinks, application="orders", log=f"sqlite:///{tmp_path}/log.db"
        )


def test_what_pickles_is_taken():
    """As it does that itself, with what it leaves out."""
    check_pickles(Lazy(threading.Lock()))
    check_pickles(ParticipantSink({"ledger": "http://127.0.0.1:1"}))
