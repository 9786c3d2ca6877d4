"""A batch that a stream has passed without a commit: who says that it is lost."""

from __future__ import annotations

import time

import pytest
from support.texts import texts
from support.watch import NAMES, SETTINGS, Site

from tracing_2pc.console.board import BoardStatus, LogSnapshot, SurveySnapshot, board
from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.log_reader import TransactionFilter
from tracing_2pc.core.model import TransactionId, TransactionRecord, way_back
from tracing_2pc.core.ports import Opening
from tracing_2pc.core.states import Decision, Severity
from tracing_2pc.inspection import kinds
from tracing_2pc.inspection.diagnosis import diagnose
from tracing_2pc.inspection.survey import survey_log

TEXTS = texts("component")
LOST = TransactionId("orders", 7, 1)


def begin(at: Site, batch: int) -> TransactionRecord:
    of = {"run": "run", "query": "query-1", "participants": NAMES}
    carrier = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
    return at.log.begin(
        "orders", batch, Opening(carrier=carrier, stream=True, **of)
    ).record


def abort(at: Site, batch: int = 7) -> TransactionRecord:
    record = begin(at, batch)
    at.log.decide(record.id, Decision.ABORT)
    at.finish(record.id)
    return record


def lose(at: Site) -> str:
    """Abort a batch, and let Spark begin the next one; return the refusal."""
    abort(at)
    with pytest.raises(ConfigurationError) as refused:
        begin(at, 8)
    return str(refused.value)


def test_an_aborted_batch_that_spark_will_run_again_is_not_lost(operator):
    """Its query has ended, and its next start writes it: nobody need be called."""
    abort(operator.at)
    operator.at.time.time = time.time()
    assert operator.says("ls")[0] == 0
    assert operator.says("watch", "--once")[0] == 0


def test_each_command_says_that_a_batch_is_lost(operator):
    """`ls`, also of what is unfinished; `explain` with the way back; `check`, `watch`.

    The refusal of the job and they say the same way back.
    """
    refused = lose(operator.at)
    operator.at.time.time = time.time()
    assert way_back(7) in refused
    for more in ((), ("--unfinished",), ("--application", "orders")):
        out = operator.out(1, "ls", *more)
        (row,) = (line for line in out.splitlines() if line.startswith(f"{LOST} "))
        assert TEXTS["a batch is lost"].format(batch=8) in row
    assert operator.out(0, "ls", "--application", "other").count(str(LOST)) == 0
    code, (one, counts) = operator.json("ls", "--unfinished")
    assert (code, one["passed_by"], counts["lost"]) == (1, 8, 1)
    _, (view,) = operator.json("explain", str(LOST))
    (diagnosis,) = view["findings"]
    assert (diagnosis["kind"], diagnosis["verdict"]) == ("lost", "escalate")
    leave = f"tracing-2pc resolve {LOST} --abort --reason …"
    found = [(action["command"], action["safe"]) for action in view["actions"]]
    assert found == [(way_back(7), True), (leave, False)]
    _, (checked,) = operator.json("check")
    cures = {problem["cure"] for problem in checked["findings"]}
    assert way_back(7) in cures
    assert f"critical lost {LOST}" in operator.out(1, "watch", "--once")


def test_the_console_lists_it_first(operator):
    """Though the log has finished it; before participants have answered, too."""
    lose(operator.at)
    at = operator.at
    at.time.advance(SETTINGS.safety_interval)
    evidence = survey_log(at.log, NAMES, at.time)
    found = diagnose(evidence, SETTINGS)
    assert [(d.about, d.kind, d.severity) for d in found] == [
        (LOST, kinds.LOST, Severity.CRITICAL)
    ]
    newest = at.log.transactions(TransactionFilter())
    judged = frozenset(evidence.log.records if evidence.log else ())
    shown = board(
        LogSnapshot(at.time.now(), [], {}, newest),
        SurveySnapshot(at.time.now(), found, judged),
    )
    assert (shown.status, [row.transaction for row in shown.rows]) == (
        BoardStatus.NEED,
        [LOST],
    )


def test_once_spark_has_gone_back_it_is_not_lost(operator):
    """It is written anew: the next attempt is on record, whatever becomes of it."""
    at = operator.at
    lose(at)
    again = begin(at, 7)
    at.decide(again.id)
    for name in NAMES:
        assert at.worlds[name].commit(str(again.id)).status_code == 200
    at.finish(again.id)
    assert at.log.passed() == []
    _, (view,) = operator.json("explain", str(LOST))
    assert (view["findings"], view["actions"]) == ([], [])
    at.time.time = time.time()
    assert operator.says("ls")[0] == 0


def test_a_person_takes_it_off_the_list(operator):
    """Of an application that is gone; signed for, and no stream passes it by that."""
    lose(operator.at)
    operator.at.time.time = time.time()
    words = ("resolve", str(LOST), "--abort", "--reason", "begun anew", "--yes")
    assert operator.says(*words)[0] == 0
    assert operator.says("ls")[0] == 0
    assert operator.says("watch", "--once")[0] == 0
    (signed,) = operator.at.log.audit(LOST)
    assert (signed.why, signed.before) == ("begun anew", "passed by batch 8")
    assert operator.says(*words)[0] != 0
    with pytest.raises(ConfigurationError):
        begin(operator.at, 8)
    assert operator.says("ls")[0] == 1
