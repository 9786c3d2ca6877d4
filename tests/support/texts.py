"""Sentences that tests look for, all in one file: who changes words changes them there.

A test asserts a kind first: an exception, an exit code, a state, a field. The words
that a person reads beside it stand in `texts.toml`, each once, under the name of what
they say.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE: Final = Path(__file__).parents[1] / "texts.toml"
ALL: Final[dict[str, dict[str, str]]] = tomllib.loads(FILE.read_text(encoding="utf-8"))


def texts(section: str) -> dict[str, str]:
    """Return the sentences of a section, by the name of what they say."""
    return ALL[section]
