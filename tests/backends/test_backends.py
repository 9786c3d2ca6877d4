"""What a person finds who looks for a transaction, also after a driver was killed."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.waiting import until

from backends import job
from backends.backend import (
    Backend,
    Trace,
    count,
    find,
    wait_for,
    without_parent,
)
from backends.demo_path import DemoPath, armed, run
from participants.processes import stopping
from tracing_2pc.core.model import TransactionId
from tracing_2pc.store import open_log
from tracing_2pc.testing import Fault, FaultProxy

NOTICES = len(job.values(1))
"""How often the notifier calls its partner for one batch."""


def is_whole(trace: Trace, told: tuple[int, int] = (1, 1)) -> bool:
    """Whether all has come: what each process exports last, and so often."""
    committed = tuple(count(trace, "POST /commit", n) for n in ("ledger", "notifier"))
    sent = count(trace, "tpc.outbox.send")
    finished = count(trace, "tpc.finish") > 0
    return finished and (committed, sent) == (told, NOTICES)


def whole(
    backend: Backend,
    transaction: str,
    *,
    lacking: Sequence[str] = (),
    told: tuple[int, int] = (1, 1),
) -> Trace:
    """Return a transaction's spans when all have come; who lacks a parent is named.

    `told` is how often the ledger and the notifier are told the commit.
    """
    wanted = list(lacking)
    return wait_for(
        backend,
        transaction,
        lambda trace: is_whole(trace, told) and without_parent(trace) == wanted,
    )


def names(trace: Trace) -> Mapping[str, set[str]]:
    """Return the names of each service's spans."""
    services = {span["service"] for span in trace}
    return {s: {n["name"] for n in trace if n["service"] == s} for s in services}


def test_a_transaction_is_found_by_its_id(
    backend: Backend, path: DemoPath, tmp_path: Path
) -> None:
    """In each service that took part, and always the same trace: no other has it."""
    assert run(path.job(tmp_path, "healthy", 2)) == 0
    for batch in range(2):
        transaction = f"healthy.{batch}.1"
        trace = whole(backend, transaction)
        assert [s["name"] for s in trace if not s["parent_id"]] == ["tpc.transaction"]
        found = find(backend, transaction)
        assert {name for name, ids in found.items() if ids} == names(trace).keys()
        assert set().union(*found.values()) == {trace[0]["trace_id"]}
        assert names(trace) == NAMES


PREPARED = {"POST /prepare", "POST /commit", "INSERT", "COMMIT"}
NAMES = {
    "healthy": {
        *("tpc.transaction", "tpc.begin", "tpc.branch", "tpc.decide", "tpc.deliver"),
        *("ParticipantSink.begin", "ParticipantSink.invoke"),
        *("ParticipantSink.pre_commit", "ParticipantSink.commit", "tpc.finish"),
        *("POST /prepare", "POST /commit"),
    },
    "ledger": PREPARED,
    "notifier": {*PREPARED, "tpc.outbox.send", "POST"},
}


def test_a_driver_is_killed_after_its_decision(
    backend: Backend, path: DemoPath, tmp_path: Path
) -> None:
    """Whoever delivers goes on in the same trace, and no span lacks its parent."""
    killed = path.job(tmp_path, "decided", 2)
    point = armed("driver.after_decide", tmp_path)
    assert run(killed, **point) == -signal.SIGKILL
    assert run(path.job(tmp_path, "decided", 2)) == 0
    for batch in range(2):
        trace = whole(backend, f"decided.{batch}.1")
        assert count(trace, "tpc.transaction") > 0


def test_a_driver_is_killed_while_it_waits_for_an_answer(
    backend: Backend, path: DemoPath, tmp_path: Path
) -> None:
    """Only what served the request under way lacks its parent, which died unsent."""
    with FaultProxy(path.notifier.url) as proxy:
        proxy.plan("commit", Fault.DELAY)  # until the client has gone
        waiting = path.job(tmp_path, "waiting", 1, notifier=proxy.url)
        with stopping(waiting):
            waiting.start()
            # Once the ledger's is exported, what the driver ended before it is, too;
            # what the tasks did may come later.
            wait_for(
                backend,
                "waiting.0.1",
                lambda trace: (
                    count(trace, "ParticipantSink.commit") == 1
                    and without_parent(trace) == []
                ),
            )
            with contextlib.closing(open_log(job.decisions(tmp_path))) as log:
                id_ = TransactionId.parse("waiting.0.1")
                until(lambda: log.read(id_).acknowledged == {"ledger"})
            waiting.kill()
        assert run(path.job(tmp_path, "waiting", 1, notifier=proxy.url)) == 0
    lacking = ["notifier POST /commit"]
    # Both once more, by the replay: what the ledger said is older than the death.
    trace = whole(backend, "waiting.0.1", lacking=lacking, told=(2, 3))
    assert count(trace, "tpc.deliver") == 3
