"""`tracing-2pc inbox`: who reads, and who is given up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tracing_2pc.cli import main
from tracing_2pc.inbox import Inbox, NewEvent


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/inbox.db"


@pytest.fixture
def inbox(url: str) -> Iterator[Inbox]:
    """Two events, and a reader that has committed one of them."""
    inbox = Inbox(url)
    inbox.store("shop", [NewEvent(name, "1") for name in "ab"])
    inbox.join("totals", inbox.start())
    inbox.confirm("totals", inbox.offset_at(inbox.start(), 1))
    yield inbox
    inbox.close()


def test_readers_are_listed(inbox, url, capsys):
    """With how far each is behind; without settings and a log."""
    assert main(["inbox", "ls", "--inbox", url]) == 0
    assert "totals  1         1" in capsys.readouterr().out
    assert main(["inbox", "ls", "--inbox", url, "--json"]) == 0
    shown, counts = map(json.loads, capsys.readouterr().out.splitlines())
    assert counts == {"kind": "counts", "readers": 1, "end": 2}
    assert (shown["reader"], shown["position"], shown["behind"]) == ("totals", 1, 1)


def test_a_reader_is_given_up(inbox, url, capsys):
    """Only when a person agrees; then no event is kept for it."""
    retire = ["inbox", "retire", "totals", "--inbox", url]
    assert main(retire) == 2
    assert "1 event that totals has not committed" in capsys.readouterr().err
    assert main([*retire, "--yes"]) == 0
    assert inbox.readers() == []
    assert main([*retire, "--yes"]) == 2
    assert "reader totals: there is none" in capsys.readouterr().err


def test_what_is_kept_is_shortened_by_a_person(inbox, url, capsys):
    """Who opens the inbox cannot; a time that is not given stays."""
    keep = ["inbox", "keep", "--inbox", url]
    assert main([*keep, "--ids", "30d"]) == 2
    assert "an id that is repeated later is a new event" in capsys.readouterr().err
    assert main([*keep, "--ids", "30d", "--yes"]) == 0
    assert "events for 7 d, and ids for 30 d" in capsys.readouterr().out
    assert inbox.times() == (7 * 86_400, 30 * 86_400)
    assert main([*keep, "--ids", "1d", "--yes"]) == 2
    assert "not below" in capsys.readouterr().err


def test_a_database_that_does_not_answer_is_said(tmp_path, capsys):
    """In one line."""
    url = "postgresql://nobody@127.0.0.1:1/none"
    assert main(["inbox", "ls", "--inbox", url]) == 1
    assert "Connection refused" in capsys.readouterr().err
