"""The README's table of spans is the registry, which is what is exported elsewhere."""

from __future__ import annotations

from pathlib import Path

from tracing_2pc import names

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_the_readme_shows_the_registry() -> None:
    """Every span, with its kind, its parent and its meaning, in the same order."""
    head = "| span | kind | child of | what it is |\n|---|---|---|---|\n"
    table = README.partition(head)[2].partition("\n\n")[0]
    rows = [
        tuple(cell.strip(" `") for cell in line.strip("|").split("|"))
        for line in table.splitlines()
    ]
    assert rows == [(name, *span) for name, span in names.SPANS.items()]
