"""The Grafana dashboard: as its program writes it, by the schema, and readable."""

import itertools
import re
from pathlib import Path

import jsonschema
import promql_parser
import yaml

from bundled.files import DASHBOARDS, GRAFANA, JAEGER, panels, read, resolved, targets
from dashboards.grafana import two_phase_commits
from tracing_2pc.console.server import LISTEN
from tracing_2pc.core.names import prometheus_name

PROVISIONED = DASHBOARDS / "grafana" / "provisioning"
SCHEMA = Path(__file__).with_name("grafana.schema.json")
VARIABLES = ("datasource", "job", "participant", "jaeger", "console")


def test_the_file_is_what_its_program_writes():
    """Nobody edits the file, so nothing is lost when it is written again."""
    command = "python -m dashboards.grafana.two_phase_commits"
    assert GRAFANA.read_text(encoding="utf-8") == two_phase_commits.text(), command


def test_it_is_a_dashboard():
    """By the part of the schema that we use; what it does not know is refused."""
    schema = jsonschema.Draft202012Validator(read(SCHEMA))
    board = read(GRAFANA)
    assert [error.message for error in schema.iter_errors(board)] == []
    for part in (board, board["panels"][0], board["panels"][0]["gridPos"]):
        part["colour"] = "red"
        assert not schema.is_valid(board)
        del part["colour"]


def test_every_expression_is_promql():
    """Once Grafana has put its variables in; it has no others."""
    for panel, target in targets():
        assert "$" not in resolved(target["expr"]), panel["title"]
        assert promql_parser.parse(resolved(target["expr"]))


def test_rates_follow_the_interval_that_grafana_chooses():
    """A fixed window would show holes, or be wrong, once somebody zooms."""
    for panel, target in targets():
        call = r"(?:rate|increase)\([^[]*\[([^\]]+)\]"
        windows = re.findall(call, target["expr"])
        assert set(windows) <= {"$__rate_interval"}, panel["title"]
        counts = re.findall(r"\w+_(?:total|bucket|count)\b", target["expr"])
        assert len(counts) == len(windows), panel["title"]


def test_numbers_are_of_now():
    """When the watcher is gone they are missing, not green; and that is said first."""
    first, alerts, *others = panels()
    assert "tpc_watcher_last_success" in first["targets"][0]["expr"]
    assert "[1d]" in first["targets"][0]["expr"]
    assert alerts["type"] == "table"
    assert {panel["type"] for panel in others} == {"stat", "timeseries"}
    for panel, target in targets():
        assert target["instant"] is (panel["type"] != "timeseries")
        assert target["range"] is not target["instant"]
    for panel in others:
        assert "over_time" not in str(panel["targets"]), panel["title"]


def test_a_decision_by_hand_is_marked():
    """By the registry's counter, also the first that a command has counted."""
    (annotation,) = read(GRAFANA)["annotations"]["list"]
    assert promql_parser.parse(resolved(annotation["expr"]))
    assert prometheus_name("tpc.operator.actions") in annotation["expr"]


def test_every_panel_can_be_read():
    """Title, description, a unit, one data source by variable; titles are unique."""
    titles = [panel["title"] for panel in panels()]
    assert len(set(titles)) == len(titles)
    for panel in panels():
        assert panel["description"].endswith(".")
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
            assert len(panel["targets"]) == 1 or target["legendFormat"]


def test_panels_lie_side_by_side():
    """Inside the grid, none above another, each with an id of its own."""
    every = read(GRAFANA)["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    places = [panel["gridPos"] for panel in every]
    assert all(at["x"] + at["w"] <= 24 for at in places)
    for one, other in itertools.combinations(places, 2):
        apart = [
            one[axis] + one[size] <= other[axis]
            or other[axis] + other[size] <= one[axis]
            for axis, size in (("x", "w"), ("y", "h"))
        ]
        assert any(apart), (one, other)


def test_variables_and_links():
    """What is used is there; nothing is edited by accident."""
    board = read(GRAFANA)
    assert tuple(v["name"] for v in board["templating"]["list"]) == VARIABLES
    used = set(re.findall(r"\$\{?([a-z]+)", GRAFANA.read_text())) - {"__rate_interval"}
    assert used - set(VARIABLES) == set()
    addresses = {v["name"]: v["query"] for v in board["templating"]["list"]}
    assert addresses["console"] == f"http://{LISTEN}"
    assert board["editable"] is False
    (provider,) = read(PROVISIONED / "dashboards" / "tracing-2pc.yaml")["providers"]
    assert (provider["type"], provider["allowUiUpdates"]) == ("file", False)
    stuck = read(JAEGER.with_name("ui-config.json"))["menu"][0]["items"][0]["url"]
    assert [link["url"] for link in board["links"]] == [
        f"${{jaeger}}{stuck}",
        "${console}",
    ]


def test_exemplars_lead_to_traces():
    """Of the data source that is provisioned beside it, which the collector fills.

    The line for Tempo stands in the file that is put beside it.
    """
    provisioned = read(PROVISIONED / "datasources" / "tracing-2pc.yaml")["datasources"]
    sources = {source["type"]: source for source in provisioned}
    (jaeger,) = sources["prometheus"]["jsonData"]["exemplarTraceIdDestinations"]
    assert jaeger["datasourceUid"] == sources["jaeger"]["uid"]
    file = PROVISIONED.parent / "tempo.yaml"
    (line,) = re.findall(r"^# (\{.*\})$", file.read_text("utf-8"), re.MULTILINE)
    (source,) = read(file)["datasources"]
    tempo = yaml.safe_load(line)
    assert tempo["datasourceUid"] == source["uid"]
    assert tempo.keys() == jaeger.keys()
    assert tempo["name"] == jaeger["name"] == "trace_id"
    sources["tempo"] = source
    assert len({s["uid"] for s in sources.values()}) == len(sources) == 3
    config = read(JAEGER)
    assert config["connectors"]["spanmetrics"]["exemplars"]["enabled"] is True
    assert config["exporters"]["prometheus"]["enable_open_metrics"] is True
    shown = [p["title"] for p in panels() if any(t["exemplar"] for t in p["targets"])]
    assert shown == [
        "Time in doubt",
        "Requests, by phase",
        "95 %, by participant",
        "Sink's phases, as spans",
        "Time to decide",
    ]
