"""The tables of the manual are what the code holds."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Final

import yaml
from manual import ROOT, options, page, pages, rows, table_rows, words

from tracing_2pc import participant
from tracing_2pc.core import names
from tracing_2pc.core.access import MAY, Role
from tracing_2pc.core.settings import Settings, seconds
from tracing_2pc.outbox import Outbox
from tracing_2pc.testing import Fault

OPENAPI: Final = ROOT / "tracing_2pc" / "http" / "openapi.yaml"


def test_spans():
    """Every span, with its kind, its parent and its meaning, in the same order."""
    shown = rows(page("tracing"), "| span | kind | child of | what it is |")
    assert [tuple(cell.strip("`") for cell in row) for row in shown] == [
        (name, span.kind, span.parent, span.meaning)
        for name, span in names.SPANS.items()
    ]


def test_attributes():
    """Every attribute, with its meaning, in the same order."""
    shown = rows(page("tracing"), "| attribute | what it is |")
    assert [tuple(cell.strip("`") for cell in row) for row in shown] == list(
        names.ATTRIBUTES.items()
    )


def test_metrics():
    """Every metric with both names, labels and meaning, in the same order."""
    shown = rows(page("metrics"), "| metric | at Prometheus | labels | what it is |")
    assert shown == [
        [
            f"`{name}`",
            f"`{names.prometheus_name(name)}`",
            ", ".join(f"`{label}`" for label in m.labels),
            m.meaning,
        ]
        for name, m in names.METRICS.items()
    ]


def test_causes():
    """Why a transaction was aborted, by the words of the label."""
    shown = re.findall(r"^- `(\w+)`: (.*)$", page("metrics"), re.M)
    assert dict(shown) == names.CAUSES


def test_settings():
    """Every setting that can be set, with its default."""
    table = rows(page("settings"), "| setting | default | meaning |")
    shown = {name.strip("`"): default.strip("`") for name, default, _ in table}
    fields = {f.name: f for f in dataclasses.fields(Settings) if f.name != "origins"}
    assert shown.keys() == fields.keys()
    defaults = Settings()
    for name, default in shown.items():
        value = getattr(defaults, name)
        if default == "none":
            assert not value, name
        elif isinstance(value, float):
            short = re.sub(r" (m|d)(in|ays)", r"\1", default)
            assert seconds(short) == value, name
        else:
            assert str(value) == default


def test_no_code_in_a_table_has_a_bar():
    """The site shows `\\|` as written; other viewers end the cell at a bare `|`."""
    read = [*pages(), ("ARCHITECTURE.md", (ROOT / "ARCHITECTURE.md").read_text())]
    lines = [(name, line) for name, text in read for line in table_rows(text)]
    assert len(lines) > 500
    barred = [(name, c) for name, line in lines for c in words(line) if "|" in c]
    assert barred == []


def test_commands():
    """Every command, with every option that it has and no other."""
    table = rows(page("cli"), "| command | what it does |")
    shown: dict[str, set[str]] = {}
    for call, about in table:
        (name,) = re.findall(r"^`tracing-2pc ([a-z-]+)", call)
        named = re.findall(r"--[a-z-]+", " ".join(words(f"{call} {about}")))
        shown[name] = shown.get(name, set()) | set(named)
    said = set(re.findall(r"`(--[a-z-]+)`", page("cli").partition("All commands")[2]))
    assert shown.keys() == {command.partition(" ")[0] for command in options()}
    for name, named in shown.items():
        of_it = [o for c, o in options().items() if c.partition(" ")[0] == name]
        known = set[str]().union(*of_it)
        asked = said if name != "demo" else set()
        assert named <= known, name
        assert known - named - asked <= {"-h", "--help"}, name


def test_each_row_of_the_failure_table_is_proven_by_a_test():
    """The tests that it names are there."""
    head = "| what is killed | log | participants | what finishes it | proven by |"
    table = rows(page("concepts"), head)
    tests = "".join(p.read_text() for p in (ROOT / "tests").rglob("test_*.py"))
    for row in table:
        named = re.findall(r"`(test_[a-z_]+)", row[-1])
        assert named, row
        assert all(f"def {name}(" in tests for name in named), row


def test_roles():
    """What a token may do."""
    table = rows(
        page("security"), "| action | job | executor | operator | viewer | producer |"
    )
    shown: dict[str, set[Role]] = {}
    columns = tuple(Role)
    for action, *cells in table:
        for role, cell in zip(columns, cells, strict=True):
            for name in _ACTIONS[action]:
                if cell == "yes" or (cell and name.endswith("by digest")):
                    shown.setdefault(name, set()).add(role)
    assert shown == MAY


_ACTIONS: Final = {
    "abort a transaction": ("abort",),
    "abort one branch": ("abort branch", "abort branch by digest"),
    "resolve an orphan": ("resolve",),
    "list, show, whoami": ("list", "show", "whoami"),
    "list an outbox's quarantine": ("quarantined",),
    "send a request in quarantine again, or drop it": ("again", "drop"),
    "prepare": ("prepare",),
    "commit": ("commit",),
    "metrics": ("metrics",),
    "send events to a gateway": ("post events",),
}


def test_routes():
    """Every route of the contract, and its roles."""
    contract = yaml.safe_load(OPENAPI.read_text(encoding="utf-8"))
    routes = {
        f"{method.upper()} {path}": operation
        for path, methods in contract["paths"].items()
        for method, operation in methods.items()
    }
    table = rows(page("http-contract"), "| route | roles | what it does |")
    assert [route.strip("`") for route, _, _ in table] == list(routes)
    for route, roles, _ in table:
        operation = routes[route.strip("`")]
        about = operation.get("description", "")
        said = re.findall(r"Roles?: ([a-z, ]+)", about)
        shown = set(re.findall("job|executor|operator|viewer", roles))
        asked = set(re.findall("job|executor|operator|viewer", "".join(said)))
        if "executor if" in about:
            asked.add("executor")
        assert shown == asked, route


def test_the_answer_table():
    """The same as in the contract, line by line."""
    contract = OPENAPI.read_text(encoding="utf-8")
    table = page("http-contract").partition("## The answer table")[2]
    lines = re.findall(r"^\|.*$", table.partition("\n## ")[0], re.M)
    assert len(lines) > 8
    assert "\n".join(f"    {line}" for line in lines) in contract


def test_resources():
    """Each resource that a service can choose, with arguments that it takes."""
    head = "| resource | database | what readers see | choose it when |"
    table = rows(page("service"), head)
    shown = {call.strip("`").partition("(")[0]: call.strip("`") for call, *_ in table}
    resources = {name: getattr(participant, name) for name in participant.__all__}
    resources["Outbox"] = Outbox
    assert shown.keys() == resources.keys()
    for name, call in shown.items():
        taken = inspect.signature(resources[name]).parameters
        named = re.findall(r"(\w+)", call.partition("(")[2].replace("None", ""))
        assert set(named) <= taken.keys()


def test_faults():
    """Each fault that the proxy can make."""
    table = rows(page("testing"), "| fault | what happens to one request |")
    shown = {name for fault, _ in table for name in re.findall(r"`(\w+)`", fault)}
    assert shown == set(Fault.__members__)


def test_labels_are_the_registrys():
    """The diagnoses of the watcher are those that it measures."""
    table = rows(page("operating"), "| diagnosis | what was seen | verdict |")
    assert {row[0].strip("`") for row in table} == set(names.LABELS["diagnosis"])


def test_coming_from_flink():
    """Each row names a test that shows it, and every method of Flink's has a row."""
    table = rows(page("flink"), "| Flink | here | shown by |", tables=2)
    for flink, _, shown in table:
        assert re.findall(r"`test_\w+::test_\w+`", shown), flink
    flinks = " ".join(flink for flink, _, _ in table)
    for spellings in names.SINK_METHODS.values():
        camel = [name for name in spellings if name != name.lower()]
        assert all(name in flinks for name in camel), spellings
