"""Read `pip-audit --format json` from standard input, and say what it means.

Exit code 1: a dependency has a known vulnerability. Where no advisories could be had,
it is said: pip-audit calls that clean.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator


def report(text: str) -> tuple[list[str], str]:
    """Return a line for each vulnerability, and what was not audited, or nothing."""
    try:
        packages = json.loads(text)["dependencies"]
    except (KeyError, TypeError, ValueError):
        return [], "nothing was audited: no advisories could be had"
    skipped = [package for package in packages if "skip_reason" in package]
    missing = ""
    if skipped or not packages:
        missing = (
            f"{len(skipped)} of {len(packages)} packages were not audited: no "
            "advisories could be had for them"
        )
    return list(_found(packages)), missing


def _found(packages: list[dict[str, object]]) -> Iterator[str]:
    for package in packages:
        for one in package.get("vulns", ()):  # type: ignore[attr-defined]
            fixed = ", ".join(one["fix_versions"]) or "no release yet"
            name = f"{package['name']} {package['version']}"
            yield f"{name}: {one['id']}, mended by {fixed}"


if __name__ == "__main__":
    found, not_audited = report(sys.stdin.read())
    sys.stdout.writelines(f"::error::{line}\n" for line in found)
    if not_audited:
        sys.stdout.write(f"::warning::{not_audited}\n")
    elif not found:
        sys.stdout.write("no known vulnerability\n")
    sys.exit(bool(found))
