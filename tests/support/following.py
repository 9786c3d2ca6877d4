"""Whoever follows a page: its files and commands, typed in a folder."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psutil

from support.waiting import until

_FENCED: Final = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_FILE: Final = re.compile(r"^# (\w+\.py):")
_TIME: Final = r"[\d.]+ (?:m?s|min)"


def without_blocks(text: str) -> str:
    """Return a page's text outside of blocks of code."""
    return _FENCED.sub("", text)


def blocks(text: str, language: str) -> list[str]:
    """Return the blocks of code in a language."""
    return [code for named, code in _FENCED.findall(text) if named == language]


def block(text: str, language: str, containing: str) -> str:
    """Return the one block of code that contains something."""
    (only,) = [code for code in blocks(text, language) if containing in code]
    return only


class Reader:
    """Types the commands of a page into one shell, as a person does.

    Args:
        folder: where; the page's files are saved there.
        text: the page.
        instead: what stands on the page, and what is typed for it.
        told: the shell's variables.
    """

    def __init__(
        self,
        folder: Path,
        text: str,
        instead: Mapping[str, str] | None = None,
        told: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self.text, self._instead = folder, text, instead or {}
        for code in blocks(text, "python"):
            if named := _FILE.match(code):
                (folder / named[1]).write_text(self.typed(code), encoding="utf-8")
        self._printed = folder / "printed"
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PYSPARK")}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        spans = {"TPC_SPANS": str(folder / "spans")}
        local = {"PATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}
        with self._printed.open("wb") as output:
            self._shell = subprocess.Popen(
                ["bash", "--norc"],
                cwd=folder,
                env={**kept, **spans, **local, **(told or {})},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
            )
        self._commands = 0
        self.types("set -m")  # as where a person types: each command is a group

    def typed(self, text: str) -> str:
        """Return what is typed for a text of the page."""
        for shown, meant in self._instead.items():
            text = text.replace(shown, meant)
        return text

    def types(self, commands: str) -> str:
        """Type these, wait until the shell has done them, and return what came."""
        self._commands += 1
        end = f"== {self._commands} done =="
        before = len(self.printed())
        assert self._shell.stdin is not None
        line = f"{self.typed(commands)}\nprintf '\\n%s\\n' '{end}'\n"
        self._shell.stdin.write(line.encode())
        self._shell.stdin.flush()
        until(lambda: end in self.printed(), tell=lambda _: self.printed()[-4000:])
        return self.printed()[before:].partition(end)[0]

    def follows(self, containing: str) -> str:
        """Type the block of the page that contains this; return what came."""
        return self.types(block(self.text, "sh", containing))

    def printed(self) -> str:
        """Return all that was printed."""
        return self._printed.read_text(errors="replace")

    def sees(self, *patterns: str) -> None:
        """Wait until lines like these are printed, one after another."""
        wanted = re.compile(".*?".join(patterns), re.M | re.S)
        until(self.printed, wanted.search, tell=lambda said: said[-4000:])

    def sees_block(self, containing: str) -> None:
        """Wait until what a block of the page shows is printed, but for its numbers."""
        shown = self.typed(block(self.text, "", containing))
        self.sees(*(_like(line) for line in shown.splitlines() if line.strip() != "…"))

    def stop(self) -> None:
        """End the shell, and all that was started in it."""
        for process in psutil.Process(self._shell.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._shell.kill()
        self._shell.communicate()


def kill_and_look(reader: Reader, application: str = "orders") -> None:
    """Follow a page from the job's first start to the one after a kill."""

    def look() -> list[int]:
        seen = reader.follows("SELECT * FROM")
        assert "Traceback" not in seen, seen
        return [seen.count("9.5"), seen.count("7.5")]

    said = reader.follows("in/1.json")
    assert f"committed: application={application} batch=0" in said
    # Before Spark's first word: an address that is wrong is seen at once.
    assert re.match(rf"\S+ \S+ ready: application={application} ", said.lstrip()), said
    assert look() == [2, 0]
    assert "Killed" in reader.follows("TPC_FAILPOINT")
    assert look() == [2, 0]
    shown = blocks(reader.text, "sh")
    (again,) = [code for code in shown if re.match(r"python job\.py( --once)?\n", code)]
    assert f"committed: application={application} batch=1" in reader.types(again)
    assert look() == [2, 2], reader.printed()


def _like(line: str) -> str:
    """Return the pattern of a printed line: any numbers, times and spaces; … is any."""
    words = re.sub(rf"{_TIME}\b", "{time}", " ".join(line.split()))
    pattern = re.escape(re.sub(r"\b[0-9a-f]{32}\b", "{id}", words))
    pattern = re.sub(r"(?<!u)[0-9]+", r"\\d+", pattern)
    pattern = pattern.replace(r"\{time\}", _TIME)
    pattern = pattern.replace(r"\{id\}", "[0-9a-f]{32}").replace(r"\ ", " +")
    return "^ *" + re.sub("(?: [+])?…", r"[^\\n]*", pattern)
