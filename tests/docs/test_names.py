"""Each name that a page mentions is there: modules, options, commands, files."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from manual import PAGES, ROOT, blocks, page, texts, words

import tracing_2pc
from tracing_2pc import participant, testing
from tracing_2pc.cli.arguments import parser
from tracing_2pc.core import names
from tracing_2pc.core.remote_participant import ENTRY_POINTS
from tracing_2pc.core.settings import Settings
from tracing_2pc.http.server import participant_blueprint
from tracing_2pc.spark import two_phase_commit

PUBLIC: Final[dict[str, Any]] = {
    **{name: getattr(tracing_2pc, name) for name in tracing_2pc.__all__},
    **{name: getattr(participant, name) for name in participant.__all__},
    **{name: getattr(testing, name) for name in testing.__all__},
    "participant_blueprint": participant_blueprint,
    "two_phase_commit": two_phase_commit,
}
"""What a page may show a call of, by name."""

FOLDERS: Final = {path.name for path in ROOT.iterdir() if path.is_dir()} - {
    *("build", "dist", "site", "state")
}
each_page = pytest.mark.parametrize(
    ("path", "text"), list(texts()), ids=[str(p.relative_to(ROOT)) for p in PAGES]
)


@functools.cache
def sources() -> str:
    """All that stands in our own programs."""
    folders = ("tracing_2pc", "participants", "compose", "bench", "tests")
    return "\n".join(
        path.read_text(encoding="utf-8")
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
    )


@functools.cache
def targets() -> set[str]:
    """The targets of the Makefile."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][a-z-]*):", text, re.M))


def known(name: str) -> bool:
    """Whether a dotted name can be imported, as a module or as what is in one."""
    package, *rest = name.split(".")
    if importlib.util.find_spec(package) is None:
        return False
    there = importlib.import_module(package)
    for number, part in enumerate(rest, 1):
        if not hasattr(there, part):
            try:
                importlib.import_module(".".join([package, *rest[:number]]))
            except ImportError:
                return False
        there = getattr(there, part)
    return True


def commands(text: str) -> Iterator[str]:
    """Yield what is typed after `tracing-2pc`, in blocks and in the text."""
    for code in blocks(text, "sh"):
        for line in code.splitlines():
            if called := re.match(r"(?:\$ )?tracing-2pc (\S.*)", line):
                yield called[1]
    for word in words(text):
        if word.startswith("tracing-2pc ") and re.match(r"\S+ [a-z]", word):
            yield word.removeprefix("tracing-2pc ")


@each_page
def test_modules_and_what_is_in_them(path: str, text: str) -> None:
    """A dotted name can be imported as it stands there."""
    named = {n for w in words(text) for n in re.findall(r"tracing_2pc(?:\.\w+)+", w)}
    named |= {n for w in words(text) for n in re.findall(r"python -m ([\w.]+)", w)}
    named |= set(re.findall(r"python -m ([\w.]+)", "".join(blocks(text, "sh"))))
    named |= set(re.findall(r"tracing_2pc(?:\.\w+)+", "".join(blocks(text, "sh"))))
    named |= set(re.findall(r"^::: ([\w.]+)$", text, re.M))
    named -= {ENTRY_POINTS}
    wheel = {n for n in named if n.startswith("tracing_2pc._participants")}
    named = named - wheel | {n.replace("tracing_2pc._", "") for n in wheel}
    assert [n for n in sorted(named) if not known(n)] == []


@each_page
def test_tests_that_show_something_are_there(path: str, text: str) -> None:
    """Each `test_file::test_name` is a function of that file."""
    named = {w for w in words(text) if re.fullmatch(r"test_\w+::test_\w+", w)}
    for file, name in (word.split("::") for word in named):
        (there,) = (ROOT / "tests").rglob(f"{file}.py")
        assert f"def {name}(" in there.read_text(encoding="utf-8"), (file, name)
    assert named or path != "README.md"


@each_page
def test_programs_compile_and_their_calls_fit(path: str, text: str) -> None:
    """What a program imports is there, and takes the arguments that it is given."""
    for code in blocks(text, "python"):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom):
                if f"this as `{node.module}.py`" in text:
                    continue  # the page shows that file, too
                for alias in node.names:
                    assert known(f"{node.module}.{alias.name}")
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                given = {k.arg for k in node.keywords if k.arg}
                _check_arguments(node.func.id, given)
    for word in words(text):
        if call := re.fullmatch(r"@?(?:\w+\.)*(\w+)\((.*)\)", word):
            _check_arguments(call[1], set(re.findall(r"(\w+)=", call[2])))


def _check_arguments(name: str, given: set[str]) -> None:
    if name in PUBLIC and callable(PUBLIC[name]):
        taken = inspect.signature(PUBLIC[name]).parameters
        extra = {"begin", "invoke", "pre_commit", "commit", "abort"}
        assert given <= taken.keys() | (extra if name == "traced_sink" else set()), name


@each_page
def test_commands_can_be_called(path: str, text: str) -> None:
    """Commands and options are there, in blocks and in the text."""
    (choices,) = [a.choices for a in parser()._actions if a.metavar == "command"]
    assert isinstance(choices, dict)
    for command in commands(text):
        name, *arguments = shlex.split(command.replace("…", "x"), comments=True)
        assert name in choices, command
        actions = choices[name]._actions
        for nested in [a.choices for a in actions if a.metavar == "action"]:
            assert arguments[0] in nested, command
            actions = [*actions, *nested[arguments[0]]._actions]
        options = {o for a in actions for o in a.option_strings}
        assert {a for a in arguments if a.startswith("--")} <= options, command
    in_blocks = [c for code in blocks(text, "sh") for c in code.splitlines()]
    for line in in_blocks:
        if line.startswith("tracing-2pc "):
            arguments = shlex.split(line.replace("…", "x"), comments=True)[1:]
            parser().parse_args(arguments)


def test_every_command_in_a_message_exists() -> None:
    """An error message never sends anybody to a command that is not there."""
    (choices,) = [a.choices for a in parser()._actions if a.metavar == "command"]
    assert choices is not None
    for source in (ROOT / "tracing_2pc").rglob("*.py"):
        named = re.findall(r"`tracing-2pc ([a-z]+)", source.read_text(encoding="utf-8"))
        assert set(named) <= set(choices), source


@each_page
def test_variables_are_read_somewhere(path: str, text: str) -> None:
    """`TPC_…` is a setting's variable, or stands in a program of ours."""
    named = set(re.findall(r"\bTPC_[A-Z_]+[A-Z]\b", text))
    settings = {f"TPC_{f.name.upper()}" for f in dataclasses.fields(Settings)}
    assert {n for n in named - settings if n not in sources()} == set()


@each_page
def test_spans_attributes_and_metrics_are_the_registrys(path: str, text: str) -> None:
    """A name with our prefix is a registered one, a table's or a file's."""
    spoken = " ".join(words(text))
    dotted = set(re.findall(r"(?<![\w.<-])tpc\.[a-z][a-z_.]*[a-z]", spoken))
    ours = names.SPANS.keys() | names.ATTRIBUTES.keys() | names.METRICS.keys()
    assert dotted - ours <= {"tpc.toml", "tpc.yaml", "tpc.rules"}
    joined = set(re.findall(r"(?<![\w.<])tpc_[a-z_]+", spoken))
    exposed = {names.prometheus_name(name) for name in names.METRICS}
    assert {n for n in joined - exposed if n not in sources()} == set()


@each_page
def test_targets_of_make(path: str, text: str) -> None:
    """`make …` is a target."""
    said = [*words(text), *"".join(blocks(text, "sh")).splitlines()]
    named = {m[1] for word in said if (m := re.match(r"make ([a-z][a-z-]*)", word))}
    assert named <= targets()


@each_page
def test_files(path: str, text: str) -> None:
    """A path is there: from the top, from the page's folder, or in the package."""
    here = (ROOT, (ROOT / path).parent, ROOT / "tracing_2pc")
    for word in words(text):
        if re.fullmatch(r"[\w./*-]+\.(py|md|ya?ml|toml|env|rules|txt|jsonl?)", word):
            first = word.partition("/")[0]
            if "/" in word and first in FOLDERS | {".."} and "*" not in word:
                assert any((folder / word).exists() for folder in here), word


@each_page
def test_links_between_files(path: str, text: str) -> None:
    """A link leads to a file of the repository, and to a heading that is there."""
    for target, anchor in re.findall(r"\]\(([^)#:\s]+)(?:#([^)]*))?\)", text):
        file = (ROOT / path).parent / target
        assert file.exists(), target
        assert not anchor or anchor in _anchors(file), f"{target}#{anchor}"


def _anchors(file: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", t.lower()).replace(" ", "-") for t in titles}


@each_page
def test_tests(path: str, text: str) -> None:
    """A test that is named as a proof is there."""
    named = set(re.findall(r"`(test_[a-z_]+)", text))
    named -= set(re.findall(r"this as `(test_[a-z_]+)\.py`", text))  # the reader's own
    modules = {file.stem for file in (ROOT / "tests").rglob("test_*.py")}
    assert {n for n in named - modules if f"def {n}(" not in sources()} == set()


def test_the_reference_has_every_public_name() -> None:
    """`api.md` shows what the packages export."""
    shown = set(re.findall(r"^::: ([\w.]+)$", page("api"), re.M))
    for package in ("", ".spark", ".sinks", ".participant", ".testing"):
        module = importlib.import_module(f"tracing_2pc{package}")
        for name in module.__all__:
            there = any(s.endswith(f".{name}") for s in shown)
            assert there, f"{module.__name__}.{name}"
    assert "tracing_2pc.http.server.participant_blueprint" in shown
    chosen = r"^::: ([\w.]+)\n    options:\n      members: \[(.*)\]$"
    for name, members in re.findall(chosen, page("api"), re.M):
        assert [m for m in members.split(", ") if not known(f"{name}.{m}")] == []


def test_every_folder_says_what_belongs_in_it() -> None:
    """And what does not, in its README, or in its package's first lines."""
    for path in (*PAGES, ROOT / "tests" / "README.md"):
        if path.name == "README.md" and path.parent != ROOT:
            text = " ".join(path.read_text(encoding="utf-8").split())
            assert re.search("[Ww]hat belongs here", text), path
            assert "What does not" in text, path


def test_the_site_has_every_page() -> None:
    """A page that is in no menu is found by nobody."""
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for path in (ROOT / "docs").glob("*.md"):
        assert path.name == "README.md" or path.name in menu, path
    assert Path(ROOT / "docs" / "index.md").exists()
