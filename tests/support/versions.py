"""This version of the package, and a next one that a minor release may be."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
NEXT: Final = (
    ("pyproject.toml", 'version = "0.1.0"', 'version = "0.2.0"'),
    (
        "tracing_2pc/http/server.py",
        '"state": str(answer.state)}',
        '"state": str(answer.state), "next": [{"new": 1}]}',
    ),
    (
        "tracing_2pc/wire/client.py",
        "contract.VERSION_HEADER: contract.VERSION,",
        'contract.VERSION_HEADER: contract.VERSION, "Tpc-Next": "new",',
    ),
    (
        "tracing_2pc/participant/journal/schema.py",
        "import Schema\n",
        "import Schema, added\n",
    ),
    (
        "tracing_2pc/participant/journal/schema.py",
        'sa.Column("sealed", sa.Float(53)),',
        'sa.Column("sealed", sa.Float), added("0.2.0", "next", sa.Text()),',
    ),
    (
        "tracing_2pc/store/log/facts.py",
        '    _maybe("cause", sa.Text()),',
        '    _maybe("region", sa.Text(), since="0.2.0"), _maybe("cause", sa.Text()),',
    ),
    (
        "tracing_2pc/core/model.py",
        "    cause: str | None = None  # of an abort\n    detail",
        '    region: str | None = "north"\n    cause: str | None = None\n    detail',
    ),
)
"""What a minor release may change: a field of each answer, a header, a
column of the journal, and one more fact about a transaction: a line in the list of
facts, and a field of the record."""


def make_versions(folder: Path) -> dict[str, Path]:
    """Return where this version is, and the next one: its wheel, unpacked."""
    from hatchling.builders.wheel import WheelBuilder

    for name in ("tracing_2pc", "participants"):
        shutil.copytree(ROOT / name, folder / "tree" / name)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "tree")
    for file, old, new in NEXT:
        text = (folder / "tree" / file).read_text(encoding="utf-8")
        assert text.count(old) == 1, file
        (folder / "tree" / file).write_text(text.replace(old, new), encoding="utf-8")
    built = WheelBuilder(str(folder / "tree")).build(directory=str(folder))
    with zipfile.ZipFile(*built) as wheel:
        wheel.extractall(folder / "next")
    return {"0.1.0": ROOT, "0.2.0": folder / "next"}
