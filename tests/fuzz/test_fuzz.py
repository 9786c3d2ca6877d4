"""Nothing that a caller sends ends a process: a few bodies of those of `make fuzz`."""

import pytest
from support.kinds import KINDS_AND_DATABASES

from fuzz import runs
from fuzz.bodies import NASTY_LINES, Case, draw
from tracing_2pc.core import content

pytestmark = pytest.mark.ci
CASES = 100
FAULTS = ((7, 551),)
"""Cases that were faults once: a list whose values have a length below zero."""


@pytest.mark.parametrize("participant", KINDS_AND_DATABASES)
def test_whatever_arrives(participant, new_database):
    """The same process answers all of it; a success has its effect; memory is flat."""
    kind, database = participant
    url = new_database() if database == "postgresql" else None
    cases = [draw(16, number) for number in range(CASES)]
    cases += [draw(*fault) for fault in FAULTS]
    if database == "sqlite":
        cases += [Case(0, content.NDJSON, line, 1) for line in NASTY_LINES]
    assert list(runs.faults(kind, cases, url)) == []


def test_a_case_is_the_same_every_time():
    """A fault that was seen by its number can be seen again."""
    assert [draw(1, n) for n in range(50)] == [draw(1, n) for n in range(50)]
    assert draw(1, 3) != draw(2, 3)
