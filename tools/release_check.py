"""Say whether a tag may be released: `python tools/release_check.py v0.1.0`.

The tag, the versions in `pyproject.toml` and `CITATION.cff`, and the first heading of
the changelog must be one version, and the heading must have its date. Exit code 1 and
a line for each that is not.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]


def faults(tag: str, project: str, changelog: str, citation: str) -> Iterator[str]:
    """Yield what stands in the way, from the texts of the files."""
    version = re.search(r'^version = "(.+)"$', project, re.MULTILINE)
    heading = re.search(r"^## (\S+)(?: \((.+)\))?$", changelog, re.MULTILINE)
    if version is None or tag != f"v{version[1]}":
        yield f"{tag} is not the version of pyproject.toml"
    if f"\nversion: {tag.removeprefix('v')}\n" not in citation:
        yield f"{tag} is not the version of CITATION.cff"
    if heading is None or tag != f"v{heading[1]}":
        yield f"{tag} is not the first heading of CHANGELOG.md"
    elif not re.fullmatch(r"\d{4}-\d{2}-\d{2}", heading[2] or ""):
        yield f"CHANGELOG.md has no date for {tag}: ({heading[2]})"


def main(tag: str) -> int:
    """Print what stands in the way; 1 if anything does."""
    files = ("pyproject.toml", "CHANGELOG.md", "CITATION.cff")
    found = list(faults(tag, *[(ROOT / name).read_text("utf-8") for name in files]))
    print("\n".join(found) or f"{tag} may be released", file=sys.stderr)  # noqa: T201
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
