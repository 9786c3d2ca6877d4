"""Which trigger interval records speak for: what is measured, and what follows."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence

import pytest

from tracing_2pc.core.log_reader import TransactionSummary
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.states import TransactionState
from tracing_2pc.inspection.trigger import NEEDED, Advice, Measured, Obstacle
from tracing_2pc.inspection.trigger import advise as advise_with

START = 1_700_000_000.0
DELIVERY = 0.25


def stream(
    rows: Sequence[int], seconds: Callable[[int], float], every: float = 10.0
) -> list[TransactionSummary]:
    """Batches, newest first; each begins on a boundary, or when the last one ends."""
    at, made = START, []
    for batch, count in enumerate(rows):
        ends = at + seconds(count)
        made.append(
            TransactionSummary(
                TransactionId("orders", batch, 1), TransactionState.COMMITTED, None,
                at, ends - DELIVERY, ends, count, None, {},
            )
        )  # fmt: skip
        at = max(at + every, ends)
    return made[::-1]


def advise(
    newest: Sequence[TransactionSummary],
    timeout: float = 900.0,
    within: float = 60.0,
    sparks_own: float = 0.0,
) -> Advice:
    """Advise as if Spark itself took no time, unless a test says how much."""
    return advise_with(newest, timeout, within, sparks_own)


def measured(advice: Advice) -> Measured:
    assert advice.measured is not None
    return advice.measured


def usual(rows: int) -> float:
    """Two seconds for itself, and a millisecond for each of its rows."""
    return 2.0 + 0.001 * rows


VARIED = [500 * (1 + batch % 5) for batch in range(40)]  # 500 to 2,500, median 1,500


def test_what_a_batch_costs_is_told_from_what_its_rows_cost():
    """The line through rows and seconds, and what follows from it."""
    advice = advise(stream(VARIED, usual))
    was = measured(advice)
    assert was.cost.separated
    assert was.cost.fixed == pytest.approx(2.0)
    assert was.cost.per_row == pytest.approx(0.001)
    assert was.rows.median == 1500
    assert was.begin_to_decision.median == pytest.approx(3.25)
    assert was.begin_to_decision.p95 == pytest.approx(4.25)
    assert was.decision_to_finished.median == pytest.approx(DELIVERY)
    assert was.longest == pytest.approx(4.25)
    assert was.every == pytest.approx(10.0)
    assert was.busy == pytest.approx(0.35)
    assert was.rows_per_second == pytest.approx(150.0)
    assert advice.shortest == pytest.approx(20.0)
    # 150 rows a second: each second of interval makes 0.15 s of batch.
    assert advice.longest == pytest.approx((60.0 - 2.0) / 1.15)
    assert advice.longest + was.seconds_of_batch(advice.longest) == pytest.approx(60.0)
    assert (advice.batches, advice.findings) == (40, ())


def test_batches_without_rows_do_not_hide_what_others_bring():
    """As of a query with state, that runs two of them after each one with rows."""
    rows = [count if batch % 3 == 0 else 0 for batch, count in enumerate(VARIED * 3)]
    advice = advise(stream(rows, usual))
    assert measured(advice).rows_per_second == pytest.approx(1500 / 30)


def test_a_few_slow_batches_do_not_turn_the_line():
    """The first one of a start, and a pause of the machine; the timeout counts them."""
    slow = {7: 30.0, 23: 45.0}
    seen = iter(range(len(VARIED)))

    def seconds(rows: int) -> float:
        return slow.get(next(seen), usual(rows))

    was = measured(advise(stream(VARIED, seconds)))
    assert was.cost.fixed == pytest.approx(2.0, rel=0.1)
    assert was.cost.per_row == pytest.approx(0.001, rel=0.1)
    assert was.longest == pytest.approx(45.0 - DELIVERY)


def test_the_fixed_cost_is_right_within_40_percent_with_20_batches():
    """In four cases of five, where times scatter by 20 %, as the module says."""
    chance = random.Random(7)

    def seconds(rows: int) -> float:
        whole = usual(rows)
        return whole * chance.lognormvariate(0, 0.2)

    costs = []
    for _ in range(100):
        rows = [chance.randint(500, 3500) for _ in range(NEEDED)]
        costs.append(measured(advise(stream(rows, seconds))).cost)
    separated = [cost for cost in costs if cost.separated]
    assert len(separated) > 50
    near = [cost for cost in separated if 1.2 <= cost.fixed <= 2.8]
    assert len(near) >= 0.8 * len(separated)


@pytest.mark.parametrize("rows", [[1000] * 30, [900, 1000, 1100] * 10])
def test_batches_that_are_alike_give_upper_bounds(rows):
    """All of a batch may be fixed, or all of it its rows: each bound is on its side."""
    advice = advise(stream(rows, usual), within=90.0)
    was = measured(advice)
    assert not was.cost.separated
    assert was.cost.fixed == pytest.approx(3.0, rel=0.01)
    assert was.cost.per_row == pytest.approx(0.003, rel=0.01)
    assert advice.shortest is not None
    assert advice.longest is not None
    assert advice.shortest >= 20.0 - 1e-6
    assert advice.longest <= (90.0 - 2.0) / 1.1
    assert advice.findings == ()


def test_bounds_of_alike_batches_that_contradict_prove_nothing():
    """Then the finding is that the costs could not be separated."""
    rows = [1000] * 30
    advice = advise(stream(rows, usual), within=20.0)
    assert advice.findings == (Obstacle.NOT_SEPARATED,)


def test_a_recovery_that_is_too_short_contradicts_the_overhead():
    """And the advice says from which one on both bounds hold."""
    of = stream(VARIED, usual)
    advice = advise(of, within=20.0)
    assert advice.findings == (Obstacle.CONTRADICTION,)
    assert advice.meet_at == pytest.approx(20.0 + 2.0 + 0.15 * 20.0)
    again = advise(of, within=advice.meet_at + 0.001)
    assert (again.findings, again.meet_at) == ((), None)
    assert advise(of, within=1.0).longest is None


def test_batches_without_a_pause_are_said_to_be_back_to_back():
    """Each one begins when the one before it has ended."""
    advice = advise(stream(VARIED, usual, every=1.0))
    assert measured(advice).busy == pytest.approx(1.0)
    assert Obstacle.BACK_TO_BACK in advice.findings
    assert Obstacle.ROWS_TOO_SLOW not in advice.findings


def test_rows_that_take_all_the_time_are_no_matter_of_the_interval():
    """Also if the batches are large: what is fixed is not what fills the time."""
    rows = [10 * count for count in VARIED]
    advice = advise(stream(rows, lambda count: 0.1 + 0.001 * count, every=1.0))
    assert set(advice.findings) == {Obstacle.BACK_TO_BACK, Obstacle.ROWS_TOO_SLOW}


def test_rows_that_leave_less_than_a_tenth_need_a_longer_interval():
    """The batch must end in its interval: the fixed cost has what the rows leave."""
    rows = [10 * count for count in VARIED]
    advice = advise(stream(rows, lambda count: 0.1 + 0.00062 * count, every=10.0))
    was = measured(advice)
    assert was.load == pytest.approx(0.93, abs=0.03)
    assert advice.shortest == pytest.approx(0.1 / (1.0 - was.load))
    assert advice.shortest > 0.1 / 0.1
    assert was.seconds_of_batch(advice.shortest) == pytest.approx(advice.shortest)


def test_the_timeout_is_three_times_the_longest_batch_or_the_default():
    """Of the measured ones and of the one that the longest interval makes."""
    short = stream(VARIED, usual)
    assert advise(short, 900.0, 60.0).timeout == 900.0
    assert advise(short, 900.0, 36_000.0).timeout == pytest.approx(
        3 * (2.0 + 0.15 * (36_000 - 2) / 1.15), abs=1.0
    )
    long = stream(VARIED, lambda rows: 200.0 + 0.1 * rows, every=1000.0)
    advice = advise(long, 900.0, 60.0)
    assert advice.timeout == pytest.approx(3 * (450 - DELIVERY), abs=1.0)
    assert Obstacle.TIMEOUT_SHORT in advice.findings
    assert Obstacle.TIMEOUT_SHORT not in advise(long, 0.0, 60.0).findings
    assert Obstacle.TIMEOUT_SHORT not in advise(short, 60.0, 60.0).findings


def test_too_few_batches_with_rows_give_no_numbers():
    """Those without rows and those that were aborted are counted, and left out."""
    full = stream([*VARIED[: NEEDED - 1], *[0] * 9], usual)
    advice = advise(full)
    assert (advice.batches, advice.empty) == (NEEDED - 1, 9)
    assert advice.findings == (Obstacle.TOO_FEW,)
    assert advice.measured is None
    assert advise([]).findings == (Obstacle.TOO_FEW,)


def test_only_committed_batches_with_rows_are_measured():
    """The others take other times: they would turn the line and lower the rows."""
    rows = [count for some in VARIED for count in (some, 0)]
    slow_when_empty = stream(rows, lambda count: usual(count) if count else 9.0)
    aborted = dataclasses.replace(
        slow_when_empty[0], state=TransactionState.ABORTED, rows=0
    )
    advice = advise([aborted, *slow_when_empty])
    assert (advice.batches, advice.empty, advice.aborted) == (40, 40, 1)
    was = measured(advice)
    assert (was.rows.median, was.longest) == (1500, pytest.approx(4.25))
    assert was.cost.fixed == pytest.approx(2.0)


def test_a_clock_that_was_put_back_makes_no_negative_time():
    """A batch that was decided before it began took no time at least."""
    newest = stream([1000] * NEEDED, usual)
    back = [
        dataclasses.replace(s, decided=s.started - 50.0, finished=s.started - 49.0)
        for s in newest
    ]
    was = measured(advise(back))
    assert (was.longest, was.begin_to_decision.median, was.cost.fixed) == (0, 0, 0)


def test_what_spark_does_between_two_batches_counts_as_fixed():
    """As much of the pause as is said; no more than the pause is."""
    of = stream(VARIED, usual)
    advice = advise(of, sparks_own=0.5)
    assert measured(advice).between == 0.5
    assert advice.shortest == pytest.approx(25.0)
    assert advice.longest == pytest.approx((60.0 - 2.5) / 1.15)
    assert measured(advise(of, sparks_own=100.0)).between == pytest.approx(6.5)


def test_short_pauses_are_no_pauses():
    """Half a second between batches of half a second is Spark at work."""
    of = stream(VARIED, lambda rows: 0.5 + 0.0001 * rows, every=1.1)
    assert Obstacle.BACK_TO_BACK in advise(of, sparks_own=0.5).findings
    assert Obstacle.BACK_TO_BACK not in advise(of, sparks_own=0.0).findings
