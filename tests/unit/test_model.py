"""The protocol as a program: all promises hold in it, and no rule can be spared."""

from __future__ import annotations

import pytest

from spec import protocol
from spec.__main__ import PAGE, counterexample, page, rules, whole
from spec.explore import explore
from spec.protocol import Bounds, Protocol
from spec.rules import BEHIND, ONE, QUICK, WITHOUT
from tracing_2pc.core.remote_participant import RemoteParticipant
from tracing_2pc.core.states import BranchState, TransactionState

BY_A_PERSON = {TransactionState.QUARANTINED, TransactionState.CONCLUDED}


@pytest.mark.parametrize(
    "bounds", [pytest.param(one, marks=pytest.mark.ci) for one in QUICK]
)
def test_all_promises_hold(bounds: Bounds) -> None:
    found = whole(bounds)
    assert (found.fault, found.story, found.is_whole) == ("", (), True)


def test_each_rule_that_is_taken_out_is_missed() -> None:
    """By a story, which stands on the page."""
    stories = [(without, counterexample(without)) for without in WITHOUT]
    assert [without.rules for without, found in stories if not found.fault] == []
    assert PAGE.read_text(encoding="utf-8") == "\n".join(page(stories))


@pytest.mark.parametrize("rule", BEHIND)
def test_who_stands_behind_another_is_not_missed_alone(rule: str) -> None:
    bounds = ONE._replace(driver_crashes=1, lost_answers=1)
    found = explore(Protocol(bounds, frozenset({rule})), 100_000)
    assert (found.fault, found.is_whole) == ("", True)


def test_it_speaks_of_what_is_built() -> None:
    """Of the same rules, states and messages."""
    taken_out = {rule.split()[0] for without in WITHOUT for rule in without.rules}
    assert taken_out - {"write"} == rules().keys()
    words = {*protocol.FINISHED, *protocol.FINISHED.values(), protocol.ACTIVE}
    assert words == {state.value for state in {*TransactionState} - BY_A_PERSON}
    routes = {name for name in dir(RemoteParticipant) if not name.startswith("_")}
    assert {protocol.PREPARE, protocol.COMMIT, protocol.ABORT} <= routes
    branch = {protocol.PREPARED, protocol.COMMITTED, protocol.ABORTED}
    assert branch == {state.value for state in BranchState}
