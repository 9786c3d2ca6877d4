"""What is written from the list of what can be wrong."""

import pytest

from bundled.files import ROOT
from dashboards.write import FILES, runbook


@pytest.mark.parametrize("file", FILES)
def test_a_file_is_what_its_program_writes(file):
    """Alerts, their monitors, alarms, sections and rows of tables: nothing by hand."""
    text = (ROOT / file).read_text(encoding="utf-8")
    assert text == FILES[file](text), "python -m dashboards.write"


def test_what_a_person_wrote_below_a_heading_is_kept():
    """A section is added for an alert that has none, and one without an alert goes."""
    text = "# Runbook\n\n### TpcGone\n\nold\n\n### TpcOrphaned\n\n*Safe:* leave it.\n"
    written = runbook(text)
    assert "### TpcOrphaned\n\n*Safe:* leave it.\n" in written
    assert "TpcGone" not in written
    assert "### TpcQuarantined\n\n*Means:* A participant's answer" in written
