"""Write into a copy of the repository where the package's own pages are.

    python tools/release_tree.py FOLDER v0.1.0 https://host/owner/name

In the repository links are relative, and nothing says where it is: a fork is right
about itself. A package index shows the README elsewhere, beside links of its own. In
the copy README's links are absolute, and `pyproject.toml` has `project.urls`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

_LINK: Final = re.compile(r"(?<=\]\()(?!https?:|#)([^)\s]+)(?=\))")


def with_absolute_links(readme: str, tag: str, repository: str) -> str:
    """Return a README whose links work wherever it is shown."""
    return _LINK.sub(rf"{repository}/blob/{tag}/\1", readme)


def with_addresses(project: str, tag: str, repository: str) -> str:
    """Return a `pyproject.toml` that says where all of it is."""
    urls = {
        "Documentation": f"{repository}/blob/{tag}/docs/index.md",
        "Source": repository,
        "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }
    lines = "".join(f'{name} = "{url}"\n' for name, url in urls.items())
    return f"{project}\n[project.urls]\n{lines}"


def main(folder: str, tag: str, repository: str = "") -> int:
    """Rewrite the two files of a folder; 2 where the address is none."""
    if not re.fullmatch(r"https://[\w.-]+(/[\w.-]+)+", repository):
        print("REPOSITORY: expected https://host/owner/name", file=sys.stderr)  # noqa: T201
        return 2
    for name, rewrite in (
        ("README.md", with_absolute_links),
        ("pyproject.toml", with_addresses),
    ):
        file = Path(folder, name)
        file.write_text(rewrite(file.read_text("utf-8"), tag, repository), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
