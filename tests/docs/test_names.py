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
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from manual import PAGES, ROOT, blocks, make_targets, options, page, pages, words
from support.texts import texts

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
NOT_INSTALLED = {"aws_msk_iam_sasl_signer", "azure.identity", "airflow.sdk"}
"""What a page's program imports and nobody here can run, or has a stand-in for."""

Check = Callable[[str, str], Iterable[str]]
"""Takes the path and the text of a page; returns what it names that is not there."""


@functools.cache
def sources() -> str:
    """All that stands in our own programs."""
    folders = ("tracing_2pc", "participants", "compose", "bench", "tests")
    return "\n".join(
        path.read_text(encoding="utf-8")
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
    )


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


def typed(text: str) -> Iterator[str]:
    """Yield what is typed after `tracing-2pc`, in blocks and in the text."""
    for code in blocks(text, "sh"):
        for line in code.splitlines():
            if called := re.match(r"(?:\$ )?tracing-2pc (\S.*)", line):
                yield called[1].removesuffix(" &")
    for word in words(text):
        if word.startswith("tracing-2pc ") and re.match(r"\S+ [a-z]", word):
            yield word.removeprefix("tracing-2pc ")


def modules(path: str, text: str) -> Iterable[str]:
    """A dotted name can be imported as it stands there."""
    in_blocks, spoken = "".join(blocks(text, "sh")), " ".join(words(text))
    named: set[str] = set(re.findall(r"^::: ([\w.]+)$", text, re.M))
    for place in (in_blocks, spoken):
        named |= set(re.findall(r"tracing_2pc(?:\.\w+)+", place))
        named |= set(re.findall(r"python -m ([\w.]+)", place))
    named -= {ENTRY_POINTS}
    of_the_wheel = {n for n in named if n.startswith("tracing_2pc._participants")}
    named -= of_the_wheel
    named |= {n.replace("tracing_2pc._", "") for n in of_the_wheel}
    return (n for n in named if not known(n))


def shown_by(path: str, text: str) -> Iterator[str]:
    """Each `test_file::test_name` is a function of that file; a page has some."""
    named = {w for w in words(text) if re.fullmatch(r"test_\w+::test_\w+", w)}
    for word in named:
        file, name = word.split("::")
        there = [p.read_text("utf-8") for p in (ROOT / "tests").rglob(f"{file}.py")]
        if len(there) != 1 or f"def {name}(" not in there[0]:
            yield word
    if path == "docs/platforms.md" and not named:
        yield "no test at all"


def programs(path: str, text: str) -> Iterator[str]:
    """What a program imports is there, and takes the arguments that it is given."""
    for node in (n for c in blocks(text, "python") for n in ast.walk(ast.parse(c))):
        if isinstance(node, ast.ImportFrom) and node.module:
            shown = TEXTS["the page shows that file"].format(name=node.module)
            if shown in text or node.module in NOT_INSTALLED:
                continue
            named = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name for name in named if not known(name))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            given = {k.arg for k in node.keywords if k.arg}
            yield from _not_taken(node.func.id, given)
    for word in words(text):
        if call := re.fullmatch(r"@?(?:\w+\.)*(\w+)\((.*)\)", word):
            yield from _not_taken(call[1], set(re.findall(r"(\w+)=", call[2])))


def _not_taken(name: str, given: set[str]) -> Iterator[str]:
    if name in PUBLIC and callable(PUBLIC[name]):
        taken = set(inspect.signature(PUBLIC[name]).parameters)
        if name == "traced_sink":
            taken |= {"begin", "invoke", "pre_commit", "commit", "abort"}
        yield from (f"{name}({argument}=)" for argument in given - taken)


def commands(path: str, text: str) -> Iterator[str]:
    """Commands and options are there, in blocks and in the text."""
    for command in typed(text):
        name, *arguments = shlex.split(command.replace("…", "x"), comments=True)
        if any(known.startswith(f"{name} ") for known in options()):
            name = f"{name} {arguments[0]}"
        asked = {a for a in arguments if a.startswith("--")}
        if not asked <= options().get(name, set()) or name not in options():
            yield command
    in_blocks = [c for code in blocks(text, "sh") for c in code.splitlines()]
    for line in in_blocks:
        if line.startswith("tracing-2pc "):
            line = line.removesuffix(" &")
            arguments = shlex.split(line.replace("…", "x"), comments=True)[1:]
            try:
                parser().parse_args(arguments)
            except SystemExit:
                yield line


def variables(path: str, text: str) -> Iterable[str]:
    """`TPC_…` is a setting's variable, or stands in a program of ours."""
    named = set(re.findall(r"\bTPC_[A-Z_]+[A-Z]\b", text))
    settings = {f"TPC_{f.name.upper()}" for f in dataclasses.fields(Settings)}
    return (n for n in named - settings if n not in sources())


def registered(path: str, text: str) -> Iterator[str]:
    """A name with our prefix is a registered one, a table's or a file's."""
    spoken = " ".join(words(text))
    dotted = set(re.findall(r"(?<![\w.<-])tpc\.[a-z][a-z_.]*[a-z]", spoken))
    ours = names.SPANS.keys() | names.ATTRIBUTES.keys() | names.METRICS.keys()
    yield from dotted - ours - {"tpc.toml", "tpc.yaml", "tpc.rules"}
    joined = set(re.findall(r"(?<![\w.<])tpc_[a-z_]+", spoken))
    exposed = {names.prometheus_name(name) for name in names.METRICS}
    yield from (n for n in joined - exposed if n not in sources())


def targets(path: str, text: str) -> Iterable[str]:
    """`make …` is a target."""
    said = [*words(text), *"".join(blocks(text, "sh")).splitlines()]
    named = {m[1] for word in said if (m := re.match(r"make ([a-z][a-z0-9-]*)", word))}
    return named - make_targets()


def files(path: str, text: str) -> Iterator[str]:
    """A path is there: from the top, from the page's folder, or in the package."""
    here = (ROOT, (ROOT / path).parent, ROOT / "tracing_2pc")
    for word in words(text):
        if re.fullmatch(r"[\w./-]+\.(py|md|ya?ml|toml|env|rules|txt|jsonl?)", word):
            first, slash, _ = word.partition("/")
            ours = slash and first in FOLDERS | {".."}
            if ours and not any((folder / word).exists() for folder in here):
                yield word


def links(path: str, text: str) -> Iterator[str]:
    """A link leads to a file of the repository, and to a heading that is there."""
    for target, anchor in re.findall(r"\]\(([^)#:\s]+)(?:#([^)]*))?\)", text):
        file = (ROOT / path).parent / target
        if not file.exists() or (anchor and anchor not in _anchors(file)):
            yield f"{target}#{anchor}"


def _anchors(file: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", t.lower()).replace(" ", "-") for t in titles}


def proofs(path: str, text: str) -> Iterable[str]:
    """A test that is named as a proof is there."""
    named = set(re.findall(r"`(test_[a-z_]+)", text))
    shown = TEXTS["the page shows that file"].format(name="(test_[a-z_]+)")
    named -= set(re.findall(shown, text))  # the reader's own
    modules = {file.stem for file in (ROOT / "tests").rglob("test_*.py")}
    return (n for n in named - modules if f"def {n}(" not in sources())


TEXTS = texts("docs")
CHECKS: Final[tuple[Check, ...]] = (
    *(modules, shown_by, programs, commands, variables),
    *(registered, targets, files, links, proofs),
)


@pytest.mark.parametrize(
    ("path", "text"), list(pages()), ids=[str(p.relative_to(ROOT)) for p in PAGES]
)
def test_each_name_on_a_page_is_there(path, text):
    """What it names can be imported, called, set, made, opened or run as a test."""
    missing = {c.__name__: found for c in CHECKS if (found := [*c(path, text)])}
    assert missing == {}


MADE_UP: Final = """
`tracing_2pc.core.nowhere` `test_names::test_nothing` `PUBLIC(nothing=1)`
`ParticipantSink(nowhere=1)` `tracing-2pc nothing` `tracing-2pc show --nothing`
`{variable}` `tpc.no.attribute` `make nothing` `docs/nowhere.md`
[there](nowhere.md) `test_that_nobody_wrote`
```python
from tracing_2pc import nothing
```
```sh
tracing-2pc show --nothing
```
"""


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_name_that_is_nowhere_is_found(check):
    """By the check that is for it: none of them looks at nothing."""
    variable = "_".join(("TPC", "NOBODY", "ASKS"))  # it stands nowhere, not here either
    assert [*check("docs/page.md", MADE_UP.format(variable=variable))]


def test_every_command_in_a_message_exists():
    """An error message never sends anybody to a command that is not there."""
    for source in (ROOT / "tracing_2pc").rglob("*.py"):
        named = re.findall(
            r"`tracing-2pc ([a-z-]+)", source.read_text(encoding="utf-8")
        )
        assert set(named) <= options().keys(), source


def test_the_reference_has_every_public_name():
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


def test_every_folder_says_what_belongs_in_it():
    """And what does not, in its README, or in its package's first lines."""
    for path in (*PAGES, ROOT / "tests" / "README.md"):
        if path.name == "README.md" and path.parent != ROOT:
            text = " ".join(path.read_text(encoding="utf-8").split())
            assert TEXTS["what belongs"] in text.lower(), path
            assert TEXTS["what does not belong"] in text.lower(), path


def test_the_site_has_every_page():
    """A page that is in no menu is found by nobody."""
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for path in (ROOT / "docs").glob("*.md"):
        assert path.name == "README.md" or path.name in menu, path
    assert Path(ROOT / "docs" / "index.md").exists()
