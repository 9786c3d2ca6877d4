"""A participant's gauge above its bound is a finding, by the number of its alert."""

import pytest

from tracing_2pc.core.model import ParticipantDescription
from tracing_2pc.core.settings import Settings
from tracing_2pc.inspection.diagnosis import Finding
from tracing_2pc.inspection.evidence import Evidence
from tracing_2pc.inspection.findings import find_all

NOW = 1_700_000_000.0


def found(**gauges: float) -> list[Finding]:
    by_name = {f"tpc.{name}".replace("__", "."): v for name, v in gauges.items()}
    ledger = ParticipantDescription("ledger", "http://127.0.0.1:1", gauges=by_name)
    evidence = Evidence(NOW, {}, None, {}, {}, descriptions={"ledger": ledger})
    return find_all(evidence, Settings())


@pytest.mark.parametrize(
    ("used", "severity"), [(51, None), (52, "warning"), (61, "critical")]
)
def test_slots_are_said_before_none_is_free(used, severity):
    """From 80 % on a warning, from 95 % on critical: at their alert's bounds."""
    of = found(prepared_slots__used=used, prepared_slots__max=64)
    assert [str(finding.severity) for finding in of] == ([severity] if severity else [])
    assert all(f"{used} of 64 prepared" in finding.why for finding in of)
    assert found(prepared_slots__used=used) == []  # of how many is not known


def test_a_branch_in_doubt_for_an_hour_is_said_whoever_has_prepared_it():
    """By the participant's clock: also where no log that is read here has a record."""
    assert found(oldest_in_doubt_age=3600) == []
    (finding,) = found(oldest_in_doubt_age=7200)
    assert (str(finding.kind), str(finding.about)) == ("in_doubt_long", "ledger")
    assert (finding.since, finding.age) == (NOW - 7200, 7200)
    assert "since 20:13:20 UTC (2 h)" in finding.why
    assert "tracing-2pc ls" in finding.cure
