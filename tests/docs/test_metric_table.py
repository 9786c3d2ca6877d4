"""The README's table of metrics is the registry, which is what is measured."""

from __future__ import annotations

from pathlib import Path

from tracing_2pc import names

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
HEAD = "| metric | labels | what it is |\n|---|---|---|\n"


def test_the_readme_shows_the_registry() -> None:
    """Every metric, with its labels and its meaning, in the same order."""
    table = README.partition(HEAD)[2].partition("\n\n")[0]
    rows = [
        tuple(cell.strip() for cell in line.strip("|").split("|"))
        for line in table.splitlines()
    ]
    assert rows == [
        (f"`{name}`", ", ".join(f"`{label}`" for label in m.labels), m.meaning)
        for name, m in names.METRICS.items()
    ]


def test_the_readme_explains_each_cause() -> None:
    """Why a transaction was aborted, by the words of the label."""
    text = " ".join(README.split())
    for cause, meaning in names.CAUSES.items():
        assert f"`{cause}`: {meaning}" in text
