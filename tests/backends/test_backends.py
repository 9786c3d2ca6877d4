"""What a person finds who looks for a transaction, also after a driver was killed."""

from __future__ import annotations

import contextlib
import json
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from support.served import unserved
from support.texts import texts
from support.waiting import until

from backends import job
from backends.backend import (
    Backend,
    Trace,
    count,
    find,
    trace_of,
    wait_for,
    warnings,
    without_parent,
)
from backends.demo_path import armed, run
from backends.jaeger import Jaeger
from participants.processes import stopping
from tracing_2pc.cli import main
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.names import SPANS
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


@pytest.mark.ci
def test_a_transaction_is_found_by_its_id(backend, path, tmp_path):
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
        assert warnings(trace) == []


def test_its_tree_is_told_in_words(backend, path, tmp_path, monkeypatch, capsys):
    """All that each process made: from a Jaeger that a link names, else from disk."""
    assert run(path.job(tmp_path, "told", 1)) == 0
    trace = whole(backend, "told.0.1")
    monkeypatch.setenv("TPC_SPANS", str(path.spans))
    monkeypatch.setenv("TPC_LOG", job.decisions(tmp_path))

    def printed() -> dict[str, Any]:
        assert main(["trace", "told.0", "--json"]) == 0
        return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]

    def is_told(tree: dict[str, Any]) -> bool:
        return whose(tree["spans"]) == whose(trace)

    with unserved() as nobody:
        links = {"": "this machine", nobody: "this machine"}
        if isinstance(backend, Jaeger):
            links[backend.page] = "jaeger at "
        for page, source in links.items():
            named = f"jaeger={page}/trace/{{trace}}" if page else ""
            monkeypatch.setenv("TPC_LINKS", named)
            tree = until(printed, is_told)
            assert tree["source"].startswith(source)
            assert len(tree["notes"]) == (page == nobody)
            assert tree["gaps"] == []
            assert all(row["meaning"] for row in tree["spans"])
            depths = [row["depth"] for row in tree["spans"]]
            assert [depth for depth in depths if not depth] == [0]
    assert main(["trace", "told.0.1"]) == 0
    words = capsys.readouterr().out
    assert SPANS["tpc.branch"].meaning in words


def whose(spans: Sequence[Mapping[str, Any]]) -> Counter[tuple[str, str]]:
    return Counter((span["service"], span["name"]) for span in spans)


@pytest.mark.ci
def test_a_healthy_trace_across_hosts_has_no_warnings(backend, path, tmp_path):
    """Nor where the job is on another host than the services: times fit together."""
    elsewhere = {"OTEL_RESOURCE_ATTRIBUTES": "host.name=driver,ip=driver"}
    assert run(path.job(tmp_path, "elsewhere", 2), **elsewhere) == 0
    for batch in range(2):
        trace = whole(backend, f"elsewhere.{batch}.1")
        assert warnings(trace) == []


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


@pytest.mark.ci
def test_a_driver_is_killed_after_its_decision(backend, path, tmp_path):
    """Whoever delivers goes on in the same trace, and no span lacks its parent."""
    killed = path.job(tmp_path, "decided", 2)
    point = armed("driver.after_decide", tmp_path)
    assert run(killed, **point) == -signal.SIGKILL
    assert run(path.job(tmp_path, "decided", 2)) == 0
    for batch in range(2):
        trace = whole(backend, f"decided.{batch}.1")
        assert count(trace, "tpc.transaction") > 0


@pytest.mark.ci
def test_a_driver_is_killed_while_it_waits_for_an_answer(backend, path, tmp_path):
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
    if isinstance(backend, Jaeger):
        # Both drivers have exported the root, and it is the same: one is shown.
        assert count(trace, "tpc.transaction") == 1
        assert not [
            w for w in warnings(trace) if texts("backends")["an odd parent"] not in w
        ]
    assert count(trace, "tpc.deliver") == 3
    # Both drivers have exported it: equal spans, of which Jaeger shows one.
    exported = 1 if isinstance(backend, Jaeger) else 2
    assert count(trace, "tpc.transaction") == exported


def test_a_stuck_transaction_of_a_dead_driver_is_one_tree(backend, path, tmp_path):
    """The watcher exports its root; the next driver does so again, and it is one.

    The trace says which participants it waits for, and then what has become of it.
    """
    point = armed("driver.after_decide", tmp_path)
    assert run(path.job(tmp_path, "stuck", 1), **point) == -signal.SIGKILL
    with contextlib.closing(open_log(job.decisions(tmp_path))) as log:
        (record,) = log.unfinished()

    def trace_with(name: str) -> Trace:
        assert record.trace_id is not None
        trace = backend.trace(record.trace_id)
        return trace if count(trace, name) and not without_parent(trace) else ()

    def watched() -> Trace:
        # A participant that is slow to answer is not named: then it looks again.
        assert run(path.watch_once(tmp_path)) in (0, 1)
        return [
            span
            for span in trace_with("tpc.in_doubt.snapshot")
            if span["name"] == "tpc.in_doubt.snapshot"
            and span["attributes"]["tpc.waits_for"] == "ledger, notifier"
        ]

    (snapshot, *_) = until(watched)
    assert snapshot["status"] == "ERROR"
    trace = trace_with("tpc.in_doubt.snapshot")
    assert {s["name"] for s in trace if not s["parent_id"]} == {"tpc.transaction"}
    assert run(path.job(tmp_path, "stuck", 1)) == 0
    trace = until(lambda: trace_with("tpc.finish"))
    roots = [s for s in trace if s["name"] == "tpc.transaction"]
    assert roots == [roots[0]] * len(roots)
    if isinstance(backend, Jaeger):
        assert len(roots) == 1
    (finish,) = [s for s in trace if s["name"] == "tpc.finish"]
    assert finish["attributes"]["tpc.outcome"] == "committed"
    assert finish["attributes"]["tpc.recovered"] is True
    assert abs(finish["start"] - roots[0]["end"]) <= 2000  # Jaeger rounds twice


@pytest.mark.ci
def test_an_abort_is_found_by_its_cause(backend, path, tmp_path):
    """Its trace is marked in a list; the attempt after it is not."""
    point = armed("driver.after_votes", tmp_path)
    assert run(path.job(tmp_path, "aborted", 1), **point) == -signal.SIGKILL
    assert run(path.job(tmp_path, "aborted", 1)) == 0
    whole(backend, "aborted.0.2")

    def root(transaction: str) -> Trace:
        trace = trace_of(backend, transaction)
        return [s for s in trace if s["name"] == "tpc.transaction"]

    aborted, *_ = until(lambda: root("aborted.0.1"))
    committed, *_ = until(lambda: root("aborted.0.2"))
    assert (aborted["status"], committed["status"]) == ("ERROR", "UNSET")
    found = backend.search("aborted", {"tpc.cause": "superseded"})
    assert found == {aborted["trace_id"]}
