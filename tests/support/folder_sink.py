"""A sink of a user's own, without the package's help: a folder of files of JSON."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Folder:
    """A file per branch: written aside, durable before the vote, moved at commit."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name

    def begin(self, context: Any) -> dict[str, Any]:
        id_ = str(context.transaction_id)
        return {"transaction": id_, "file": f"{context.branch}.json", "rows": []}

    def invoke(self, handle: dict[str, Any], record: dict[str, Any]) -> None:
        handle["rows"].append(record["value"])

    def pre_commit(self, handle: dict[str, Any]) -> None:
        aside = self._aside(handle)
        aside.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("w") as file:
            json.dump(handle.pop("rows"), file)
            file.flush()
            os.fsync(file.fileno())

    def commit(self, handle: dict[str, Any]) -> None:
        visible = self.path / f"{handle['transaction']}-{handle['file']}"
        if not visible.exists():
            self._aside(handle).rename(visible)

    def abort(self, handle: dict[str, Any]) -> None:
        self._aside(handle).unlink(missing_ok=True)

    def abort_transaction(
        self, transaction_id: str, keep: Sequence[dict[str, Any]]
    ) -> None:
        kept = {handle["file"] for handle in keep}
        for file in (self.path / ".tpc" / transaction_id).glob("*.json"):
            if file.name not in kept:
                file.unlink()

    def _aside(self, handle: dict[str, Any]) -> Path:
        return self.path / ".tpc" / str(handle["transaction"]) / str(handle["file"])


def in_files(folder: Path) -> Counter[int]:
    """Return what a reader of the folder sees."""
    files = [json.loads(file.read_text()) for file in folder.glob("*.json")]
    return Counter(number for file in files for number in file)
