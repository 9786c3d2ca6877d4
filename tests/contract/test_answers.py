"""What a participant answers, whatever it holds its data with.

`unit/test_answer_table.py` holds the decisions against the table, without a database;
`ResourceContract` holds each kind against it, without HTTP. Here it is one kind on each
database, over HTTP; and all kinds where they differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.branches import ONE, OTHER, TRACE, TWIN, Branch, orders
from support.kinds import BOTH_ENDS, CONTRACT_KINDS, started
from support.participant import World, keep, writing_rows
from support.texts import texts
from support.transports import OTHERS, over

from tracing_2pc.participant.answers import ANSWERS
from tracing_2pc.wire.error_responses import OK, STATUSES

TEXTS = texts("contract")
T = "orders.7.1"
NEIGHBOUR = Branch(ONE.body, ONE.rows, "1.1")
PREVIOUS = "orders.7.2"


@pytest.fixture(params=CONTRACT_KINDS)
def made(request, tmp_path) -> Iterator[tuple[World, str, str]]:
    yield from started(request, tmp_path)


both_ends = pytest.mark.parametrize("made", BOTH_ENDS, indirect=True)
"""Of what the journal and the blueprint do alone, the same for every kind."""


def prepared(world: World, branch: Branch = ONE) -> None:
    assert world.prepare(T, branch).status_code == 200


def committed(world: World) -> None:
    keep(world, T, ONE)


def aborted(world: World) -> None:
    prepared(world)
    assert world.abort(T).status_code == 200


def resolved_commit(world: World) -> None:
    prepared(world)
    assert world.resolve(T, "commit").status_code == 200


def resolved_abort(world: World) -> None:
    prepared(world)
    assert world.resolve(T, "abort").status_code == 200


def another_committed(world: World) -> None:
    keep(world, PREVIOUS, ONE)


def forgotten(world: World) -> None:
    committed(world)
    assert world.commit("orders.9.1", forgotten_through=8).status_code == 200


REQUESTS: dict[str, Callable[[World], Any]] = {
    "prepare same": lambda world: world.prepare(T, ONE),
    "prepare other": lambda world: world.prepare(T, OTHER),
    "commit": lambda world: world.commit(T, ONE),
    "commit empty": lambda world: world.commit(T),
    "abort": lambda world: world.abort(T),
    "abort branch": lambda world: world.abort(T, branch=ONE.branch),
    "abort branch by digest": lambda world: world.abort(
        T, branch=ONE.branch, digest=ONE.digest
    ),
    "abort branch of other": lambda world: world.abort(
        T, branch=ONE.branch, digest=OTHER.digest
    ),
    "look up": lambda world: world.show(T),
}

GIVEN: dict[str, Callable[[World], None]] = {
    "unknown": lambda world: None,
    "prepared": prepared,
    "committed": committed,
    "aborted": aborted,
    "resolved_committed": resolved_commit,
    "resolved_aborted": resolved_abort,
    "another_committed": another_committed,
    "forgotten": forgotten,
}


every_cell = pytest.mark.parametrize(
    ("given", "asked"),
    [
        pytest.param(given, asked, id=f"{given}-{asked}")
        for given, row in ANSWERS.items()
        for asked in row
    ],
)


@every_cell
@both_ends
def test_every_cell(world, given, asked):
    """A participant answers as the table says, names the transaction, and says why."""
    GIVEN[given](world)
    answer = REQUESTS[asked](world)
    body = answer.get_json()
    refusal, state = ANSWERS[given][asked]
    status = OK if refusal is None else STATUSES[refusal]
    assert (answer.status_code, body["state"]) == (status, state)
    assert body["transaction_id"] == T
    if answer.status_code != 200:
        assert answer.content_type == "application/problem+json"
        assert body["status"] == answer.status_code
        assert body["detail"]
        assert body.get("vote") == ("abort" if "prepare" in asked else None)
    by_hand = given.startswith("resolved")
    assert body.get("resolved_by_hand", False) is by_hand
    if given == "another_committed" and asked.startswith("prepare"):
        assert body["committed"] == PREVIOUS


@every_cell
@pytest.mark.ci
@pytest.mark.parametrize("transport", OTHERS)
@pytest.mark.parametrize("made", BOTH_ENDS[:1], indirect=True)
def test_every_cell_over_another_transport(world, transport, given, asked):
    """A client is told the same: refusal, transaction, state and vote, and a reason.

    And who decided it, and which other attempt is committed.
    """
    with over(transport, world) as reached:
        GIVEN[given](reached)
        answer = REQUESTS[asked](reached)
    body = answer.get_json()
    refusal, state = ANSWERS[given][asked]
    assert answer.status_code == (OK if refusal is None else STATUSES[refusal])
    assert (body["transaction_id"], body["state"]) == (T, state)
    if refusal is not None:
        assert answer.content_type == "application/problem+json"
        assert body["detail"]
        assert body.get("vote") == ("abort" if "prepare" in asked else None)
    assert body.get("resolved_by_hand", False) is given.startswith("resolved")
    if given == "another_committed" and asked.startswith("prepare"):
        assert body["committed"] == PREVIOUS
    if refusal is None and "prepare" in asked:
        sent = OTHER if "other" in asked else ONE
        counted = (body["vote"], body["rows"], body["digest"])
        assert counted == ("commit", sent.rows, sent.digest)


def test_while_rows_are_written(world):
    """Who sends the same branch is told to ask again, by any process; others go on."""
    keep(world, "orders.6.1", OTHER)
    answers, scraped = [], []

    def ask() -> None:
        answers.extend(world.prepare(T, branch) for branch in (ONE, OTHER))
        scraped.append(world.client.get("/metrics").text)

    with writing_rows(world, ask):
        assert world.prepare(T).get_json()["vote"] == "commit"
    for answer in answers:
        assert (answer.status_code, answer.get_json()["state"]) == (425, "unknown")
        assert "vote" not in answer.get_json()
    assert "\ntpc_uploads 1\n" in scraped[0]
    assert "\ntpc_uploads 0\n" in world.client.get("/metrics").text
    assert world.prepare(T).status_code == 200
    assert (world.in_doubt(), world.visible()) == (1, OTHER.rows)


@pytest.mark.parametrize(
    "how", ["whole", "branch", "commit without it", "forgotten_through"]
)
def test_an_upload_whose_transaction_is_sealed_votes_abort(world, how):
    """Nobody waits for a slow upload; it finds out when it ends (rule 20)."""
    with world.writing(T) as upload:
        answer = {
            "whole": lambda: world.abort(T),
            "branch": lambda: world.abort(T, branch=ONE.branch),
            "commit without it": lambda: world.commit(T),
            "forgotten_through": lambda: world.commit(
                "orders.8.1", forgotten_through=7
            ),
        }[how]()
        assert answer.status_code == 200
        late = upload.finish()
    assert late.status_code == (410 if how == "forgotten_through" else 409)
    assert late.get_json()["vote"] == "abort"
    assert (world.in_doubt(), world.visible()) == (0, 0)


def test_a_branch_that_is_not_named_aborts(world):
    """Of two twins exactly the named one is seen, and the other cannot come back."""
    prepared(world)
    prepared(world, TWIN)
    assert world.commit(T, TWIN).status_code == 200
    assert (world.in_doubt(), world.visible()) == (0, 3)
    assert world.prepare(T, ONE).get_json()["state"] == "aborted"
    assert world.commit(T, TWIN, ONE).status_code == 409
    assert world.abort(T, branch=ONE.branch).status_code == 200
    never = Branch(ONE.body, ONE.rows, "9.9")
    assert world.commit(T, TWIN, never).status_code == 404
    assert world.visible() == 3


def test_a_task_aborts_its_own_branch_only(world):
    """A branch abort leaves its twin prepared, and a tombstone where it was unknown."""
    prepared(world)
    assert world.abort(T, branch=TWIN.branch).status_code == 200
    assert world.prepare(T, TWIN).get_json()["state"] == "aborted"
    assert world.commit(T, ONE, TWIN).status_code == 409
    assert world.commit(T, ONE).status_code == 200
    assert world.visible() == 3


def test_an_empty_commit_counts_as_the_committed_attempt(world):
    """No other attempt of a batch is accepted after a commit without rows."""
    assert world.commit(T).status_code == 200
    refused = world.prepare(PREVIOUS)
    assert (refused.status_code, refused.get_json()["committed"]) == (409, T)
    assert refused.get_json()["transaction_id"] == PREVIOUS


def test_an_empty_branch_leaves_nothing(world):
    """Prepare of no rows is read_only: nothing in doubt, nothing to name."""
    empty = Branch(orders(), 0)
    answer = world.prepare(T, empty)
    assert (answer.status_code, answer.get_json()["vote"]) == (200, "read_only")
    assert world.in_doubt() == 0
    assert world.show(T).status_code == 404
    assert world.commit(T).status_code == 200


def test_a_prepared_branch_outlives_forgotten_through(world):
    """Below forgotten_through it is listed, and a person can resolve it (rule 12)."""
    prepared(world)
    assert world.commit("orders.9.1", forgotten_through=8).status_code == 200
    assert world.listed() == [(T, ONE.branch, "prepared")]
    assert world.commit(T, ONE).status_code == 410
    assert world.resolve(T, "abort").status_code == 200
    assert (world.in_doubt(), world.visible()) == (0, 0)


def test_resolving_by_hand(world):
    """Only what is prepared can be resolved, once, and it is remembered who did."""
    assert world.resolve(T, "commit").status_code == 404
    prepared(world)
    prepared(world, NEIGHBOUR)
    answer = world.resolve(T, "commit")
    assert answer.get_json() == {
        "transaction_id": T,
        "state": "committed",
        "resolved_by_hand": True,
    }
    assert world.visible() == 6
    assert world.resolve(T, "abort").status_code == 409


def test_resolving_by_hand_commits_no_twins(world):
    """Two branches of one partition hold the same records: only abort is safe."""
    prepared(world)
    prepared(world, TWIN)
    refused = world.resolve(T, "commit")
    assert (refused.status_code, refused.get_json()["state"]) == (409, "prepared")
    assert TEXTS["a person may only abort"] in refused.get_json()["detail"]
    assert (world.in_doubt(), world.visible()) == (2, 0)
    assert world.abort(T, branch=TWIN.branch).status_code == 200
    assert world.resolve(T, "commit").status_code == 200
    assert world.visible() == 3


@both_ends
def test_resolving_by_hand_below_forgotten_through(world):
    """What committed the batch may be forgotten there: only abort is safe."""
    prepared(world)
    another_committed(world)
    assert world.commit("orders.9.1", forgotten_through=8).status_code == 200
    refused = world.resolve(T, "commit")
    assert (refused.status_code, refused.get_json()["state"]) == (409, "prepared")
    assert world.visible() == 3
    assert world.resolve(T, "abort").status_code == 200
    assert (world.in_doubt(), world.visible()) == (0, 3)


@both_ends
def test_the_list(world):
    """Pages hold each open branch once, with its age, rows and first carrier."""
    for batch in range(5):
        world.prepare(f"orders.{batch}.1")
    world.prepare("other.0.1")
    found, after = [], ""
    while True:
        page = world.client.get(f"/transactions?application=orders&limit=2{after}")
        found += page.get_json()["transactions"]
        if (next_ := page.get_json()["next"]) is None:
            break
        after = f"&after={next_}"
    assert [t["transaction_id"] for t in found] == [f"orders.{n}.1" for n in range(5)]
    assert {(t["rows"], t["branch"], t["state"]) for t in found} == {
        (3, "0.1", "prepared")
    }
    assert found[0]["carrier"] == TRACE
    assert all(t["age"] >= 0 for t in found)
    assert len(world.listed()) == 6


@both_ends
def test_the_carrier_is_that_of_the_first_prepare(world):
    """Later branches of a transaction do not change its trace context at rest."""
    prepared(world)
    other = {"traceparent": f"00-{'c' * 32}-{'d' * 16}-01"}
    world.prepare(T, TWIN, headers=other)
    page = world.client.get("/transactions").get_json()["transactions"]
    assert [t["carrier"] for t in page] == [TRACE, TRACE]
