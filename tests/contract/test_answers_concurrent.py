"""Many ask at once, and some die in the middle: still one answer holds."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from flask import Response
from support.branches import ONE, TWIN
from support.elsewhere import Holding, hold
from support.kinds import tagged_rows
from support.participant import World, keep, writing_rows
from support.spark import serving
from support.waiting import AT_LAST, AT_ONCE, until

from tracing_2pc import ParticipantSink
from tracing_2pc.core.model import BranchContext, BranchId, TransactionId
from tracing_2pc.core.states import Vote
from tracing_2pc.sinks.base import write_branch
from tracing_2pc.testing.resource_process import at_once

T = "orders.7.1"


@pytest.fixture
def world(open_at) -> World:
    return open_at()


@pytest.fixture
def other(open_at, world) -> World:
    """Another process's worth of the same participant."""
    return open_at()


def test_of_two_attempts_one_commits(world, other):
    """Two attempts of a batch that are committed at once: one is refused."""
    for batch in range(6):
        ids = [f"orders.{batch}.{attempt}" for attempt in (1, 2)]
        for id_ in ids:
            assert world.prepare(id_).status_code == 200
        found = at_once(
            lambda id_=ids[0]: world.commit(id_, ONE),
            lambda id_=ids[1]: other.commit(id_, ONE),
        )
        assert sorted(answer.status_code for answer in found) == [200, 404]
        assert world.visible() == ONE.rows * (batch + 1)


def test_a_prepare_and_an_abort_at_once(world, other):
    """Whichever comes first, nothing stays in doubt after the abort."""
    for batch in range(8):
        id_ = f"orders.{batch}.1"
        prepared, aborted = at_once(
            lambda id_=id_: world.prepare(id_), lambda id_=id_: other.abort(id_)
        )
        assert aborted.status_code == 200
        assert prepared.status_code in {200, 409}
        assert world.prepare(id_).get_json()["state"] == "aborted"
    assert (world.in_doubt(), world.visible()) == (0, 0)


def test_a_participant_that_is_slow_is_waited_for(world, monkeypatch):
    """A client that has heard nothing sends its rows again, and is told to wait."""
    monkeypatch.setenv("TPC_TOKEN", "anything-as-it-is-insecure")
    statuses: list[int] = []

    @world.app.after_request
    def note(response: Response) -> Response:
        statuses.append(response.status_code)
        return response

    keep(world, "orders.1.1", ONE)

    def until_told_to_wait() -> None:
        until(lambda: statuses.count(425) > 1)

    branch = BranchId(0, 1)
    context = BranchContext(TransactionId.parse(T), branch, ("participant",), {})
    rows = [pa.RecordBatch.from_pydict({"id": [4], "amount": [0.5]})]
    with writing_rows(world, until_told_to_wait) as written, serving(world.app) as at:
        sink = ParticipantSink({"participant": at}, timeout=AT_ONCE)
        (receipt,) = write_branch(sink, context, rows)
    assert (receipt.vote, written) == (Vote.COMMIT, [1])
    assert (world.in_doubt(), world.visible()) == (1, ONE.rows)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_writer_that_is_killed_leaves_nothing(url, world):
    """What a process was uploading when it died is unknown, and can be sent again.

    Nor is its file left. `ResourceContract` kills a writer on each database.
    """
    keep(world, "orders.1.1", ONE)
    with Holding(__file__, url) as child:
        assert world.listed() == []
        assert world.prepare(T).status_code == 425
        child.send_signal(signal.SIGKILL)
        child.wait(AT_LAST)
    assert world.show(T).status_code == 404
    assert world.commit(T, ONE).status_code == 404
    keep(world, T, ONE)
    assert world.visible() == 2 * ONE.rows
    names = {
        path.name for path in Path(url.removeprefix("sqlite:///")).parent.iterdir()
    }
    kept = {"participant.db", "participant.db-shm", "participant.db-wal"}
    assert names == {*kept, "participant.db-tpc.lock"}


def test_a_killed_upload_does_not_hold_up_a_commit(url, world):
    """Commit of others seals over what a killed process was writing."""
    assert world.prepare(T, TWIN).status_code == 200
    with Holding(__file__, url) as child:
        child.send_signal(signal.SIGKILL)
        child.wait(AT_LAST)
    assert world.commit(T, TWIN).status_code == 200
    assert world.visible() == TWIN.rows
    assert world.prepare(T, ONE).status_code == 409


if __name__ == "__main__":
    with tagged_rows(sys.argv[1]).writing(T):
        hold()
