"""The manifests of `examples/kubernetes` fit Kubernetes and our programs."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sqlite3
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import kubernetes_validate
import pyarrow as pa
import pyspark
import pytest
import yaml
from support.waiting import until

from containers.files import ROOT
from containers.manifests import (
    FOLDER,
    container,
    environment,
    mounted,
    named,
    objects,
    pods,
    running,
)
from participants.processes import Process, free_ports, stopping
from tracing_2pc import ParticipantSink
from tracing_2pc.cli.arguments import parser
from tracing_2pc.core.model import BranchContext, BranchId, TransactionId
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import Vote
from tracing_2pc.embedded.addresses import read_address
from tracing_2pc.sinks.base import write_branch
from tracing_2pc.store import open_log

DOCKERFILE = (FOLDER / "Dockerfile").read_text()
MANUAL = (ROOT / "docs" / "platforms.md").read_text()
ROUTES = yaml.safe_load((ROOT / "tracing_2pc/http/openapi.yaml").read_text())["paths"]
SPARK = dict(
    line.split()
    for line in named("ConfigMap")["orders-spark"]["data"][
        "spark.properties"
    ].splitlines()
    if not line.startswith("#")
)
EACH = pytest.mark.parametrize("workload", sorted(pods()))
OLDEST, NEWEST = "1.29", kubernetes_validate.latest_version().rpartition(".")[0]


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_kubernetes_takes_each_object(version):
    """By its own schemas: no unknown field, no wrong type, nothing left out."""
    for made in objects():
        assert kubernetes_validate.validate(made, version, strict=True) == version


def test_the_schemas_would_find_a_slip():
    """A field that is spelt wrongly does not pass."""
    slip = named("Deployment")["ledger"]
    slip["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="readynessProbe"):
        kubernetes_validate.validate(slip, NEWEST, strict=True)


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        ("ledger", {"command": "serve", "name": "ledger"}),
        ("tpc-watcher", {"command": "watch", "recover": True}),
    ],
)
def test_our_command_line_takes_a_command(workload, expected):
    """The command and its options."""
    program, *arguments = container(workload)["command"]
    assert program == "tracing-2pc"
    assert (Path(sys.executable).parent / program).exists()
    assert expected.items() <= vars(parser().parse_args(arguments)).items()


def test_what_is_served_is_an_address():
    """Of a table, with the database's URL in a file: it holds a password."""
    settings = Settings.load(
        environ={n: v for n, v in environment("ledger").items() if v is not None}
    )
    assert read_address(settings.participants["ledger"]).url
    assert "url_file" in settings.participants["ledger"]


def test_the_image_is_made_of_files_that_are_there():
    """And that the folder's list of what is sent to an engine lets through."""
    sent = (ROOT / ".dockerignore").read_text().splitlines()
    for line in re.findall(r"^COPY (.+)$", DOCKERFILE, re.M):
        for source in line.split()[:-1]:
            place = Path(source)
            assert (ROOT / place).exists(), source
            assert {f"!{place}", f"!{place.parent}/*{place.suffix}"} & set(sent), source


def test_spark_submit_is_given_files_that_are_there():
    """The properties are mounted, the program is in the image."""
    program, option, properties, job, folder = container("orders")["command"]
    assert (program, option) == ("spark-submit", "--properties-file")
    place = Path(properties)
    volume = mounted("orders")[str(place.parent)]["configMap"]["name"]
    assert place.name in named("ConfigMap")[volume]["data"]
    assert f"examples/kubernetes/{Path(job).name}" in DOCKERFILE
    assert f"{Path(job).parent}/\n" in DOCKERFILE
    assert folder in mounted("orders")


def test_spark_knows_its_properties():
    """Each, of the manual too, stands in the programs of the Spark that is tested."""
    wanted = set(re.findall(r"\bspark(?:\.[a-z]\w*)+", MANUAL))
    for key in SPARK:
        prefix = re.fullmatch(
            r"(spark\.kubernetes\.executor\.(?:secrets|volumes)\.)"
            r"(?:persistentVolumeClaim\.\w+\.)?(.*)",
            key,
        )
        if prefix is None:
            wanted.add(key)
        else:
            wanted |= {prefix[1]} | ({prefix[2]} if "volumes" in key else set())
    known = b"".join(_configuration_of_spark())
    assert {key for key in wanted if key.encode() not in known} == set()
    tested = (ROOT / "requirements.txt").read_text()
    (version,) = re.findall(r"apache/spark:([\d.]+)-", DOCKERFILE)
    assert re.search(rf"^pyspark\S*=={re.escape(version)}\b", tested, re.M)


def _configuration_of_spark() -> Iterator[bytes]:
    jars = Path(pyspark.__file__).parent / "jars"
    for kind in ("core", "kubernetes", "launcher", "yarn"):
        (jar,) = jars.glob(f"spark-{kind}_*.jar")
        with zipfile.ZipFile(jar) as classes:
            for name in classes.namelist():
                if re.search(
                    "conf|KubernetesVolume|SparkLauncher|yarn.Client", name, re.I
                ):
                    yield classes.read(name)


@EACH
def test_every_variable_is_read(workload):
    """A setting's, one of OpenTelemetry's that works here, or the program's own."""
    ours = {f"TPC_{field.name.upper()}" for field in dataclasses.fields(Settings)}
    programs = "".join(path.read_text() for path in FOLDER.glob("*.py"))
    settings = (ROOT / "docs" / "settings.md").read_text()
    works = "\n".join(re.findall(r"^\| (.*) \| works \|", settings, re.M))
    works = works.replace("<SIGNAL_>", "")
    for name in environment(workload):
        if name.startswith("OTEL_"):
            assert f"`{name}`" in works, name
        elif name.startswith("TPC_"):
            assert name in ours | {"TPC_CONFIG"}, name
        else:
            assert f"env:{name}" in programs, name


@EACH
def test_what_a_pod_needs_is_there(workload):
    """Maps, claims and accounts are here, Secrets in commands of the manual."""
    pod, its = pods()[workload], container(workload)
    if account := pod.get("serviceAccountName"):
        assert account in named("ServiceAccount")
    secrets = {v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v}
    for variable in its["env"]:
        if source := variable.get("valueFrom"):
            reference = source["secretKeyRef"]
            secrets.add(reference["name"])
            assert f"--from-file={reference['key']}=" in MANUAL
    for name in secrets:
        assert f"kubectl create secret generic {name} " in MANUAL
    for volume in pod["volumes"]:
        for kind in ("ConfigMap", "PersistentVolumeClaim"):
            if source := volume.get(kind[0].lower() + kind[1:]):
                assert (source.get("name") or source["claimName"]) in named(kind)
    for path in re.findall(r"/(?:settings|secrets)/[\w./]+", str(its)):
        if path not in mounted(workload):
            assert str(Path(path).parent) in mounted(workload), path


@pytest.mark.parametrize(
    ("workload", "name"), [("orders", "job.toml"), ("tpc-watcher", "watcher.toml")]
)
def test_the_settings_can_be_read(workload, name, tmp_path):
    """By their program: what is named is mounted, and an address leads to a Service."""
    assert environment(workload)["TPC_CONFIG"] == f"/settings/{name}"
    (tmp_path / name).write_text(named("ConfigMap")["tpc-settings"]["data"][name])
    settings = Settings.load(tmp_path / name, environ={})
    assert settings.log == "env:TPC_LOG"
    assert "TPC_LOG" in environment(workload)
    for reference in (settings.token, settings.tokens_file):
        if reference:
            folder = Path(reference.removeprefix("file:")).parent
            assert "secret" in mounted(workload)[str(folder)]
    for url in settings.participants.values():
        host, port = re.fullmatch(r"http://([\w-]+):(\d+)", url).groups()  # type: ignore[union-attr]
        (served,) = named("Service")[host]["spec"]["ports"]
        assert served["port"] == int(port)


def test_executors_find_token_files_and_driver():
    """The Secret and the claim of the driver at the same paths; its own name."""
    mounts = mounted("orders")
    path = SPARK["spark.kubernetes.executor.secrets.tpc-job-token"]
    assert mounts[path]["secret"]["secretName"] == "tpc-job-token"
    volume = "spark.kubernetes.executor.volumes.persistentVolumeClaim.state."
    claim = mounts[SPARK[f"{volume}mount.path"]]["persistentVolumeClaim"]
    assert claim["claimName"] == SPARK[f"{volume}options.claimName"]
    driver = named("StatefulSet")["orders"]["spec"]
    assert SPARK["spark.kubernetes.driver.pod.name"] == "orders-0"
    assert SPARK["spark.driver.host"] == f"orders-0.{driver['serviceName']}"
    service = named("Service")[driver["serviceName"]]["spec"]
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    assert driver["replicas"] == 1
    ports = {p["name"]: p["containerPort"] for p in container("orders")["ports"]}
    assert {p["name"]: p["port"] for p in service["ports"]} == ports
    assert ports["driver"] == int(SPARK["spark.driver.port"])
    assert ports["blocks"] == int(SPARK["spark.driver.blockManager.port"])
    assert {SPARK["spark.kubernetes.container.image"]} == {
        container(workload)["image"] for workload in pods()
    }
    assert SPARK["spark.kubernetes.container.image"] in DOCKERFILE
    python = Path(SPARK["spark.pyspark.python"])
    assert f"python3 -m venv {python.parents[1]}" in DOCKERFILE


@pytest.mark.parametrize("workload", ["ledger", "tpc-watcher"])
def test_what_is_asked_for_is_served(workload):
    """At the port that the program is told, by routes of the contract."""
    its = container(workload)
    (port,) = its["ports"]
    assert f"0.0.0.0:{port['containerPort']}" in its["command"]
    for probe, path in (("readi", "ready"), ("live", "live")):
        asked = its[f"{probe}nessProbe"]["httpGet"]
        assert (asked["path"], asked["port"]) == (f"/health/{path}", port["name"])
        assert asked["path"] in ROUTES


@EACH
def test_no_container_may_more_than_it_needs(workload):
    """Not root, a root file system that is not written, no capability, a limit."""
    pod, its = pods()[workload], container(workload)
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 185,
        "fsGroup": 185,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert "USER 185:185" in DOCKERFILE
    assert its["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert its["resources"]["limits"]["memory"]
    empty = [path for path, v in mounted(workload).items() if "emptyDir" in v]
    assert empty == ["/tmp"]
    assert pod.get("automountServiceAccountToken", True) == (workload == "orders")


def test_no_secret_is_written_down():
    """No password in a URL, no Secret with a value."""
    for made in objects():
        assert made["kind"] != "Secret"
        assert not re.search(r"://[^/\s@]*:[^/\s@]*@", str(made))


@pytest.fixture
def place(tmp_path) -> Path:
    (tmp_path / "writable").mkdir()
    return tmp_path / "writable"


@pytest.mark.ci
def test_a_participant_writes_only_to_its_temporary_folder(place):
    """Large branches, too, with a read-only root file system, and no word of it."""
    (port,) = free_ports(1)
    changes = {"0.0.0.0:8081": f"127.0.0.1:{port}"}
    files = {"database/url": f"sqlite:///{place / 'ledger.db'}"}
    service = running("ledger", place, changes, files=files, read_only=True)
    url = f"http://127.0.0.1:{port}"
    with stopping(service):
        service.start()
        service.until_answers(f"{url}{_path(service, 'readinessProbe')}", 120)
        sink = ParticipantSink({"ledger": url}, token=f"file:{place}/secrets/job/token")
        first, branch = TransactionId("orders", 0, 1), BranchId(0, 1)
        context = BranchContext(first, branch, ("ledger",), {})
        large = pa.RecordBatch.from_pydict({"id": [1], "note": ["x" * (16 << 20)]})
        (receipt,) = write_branch(sink, context, [large])
        assert receipt.vote is Vote.COMMIT
    assert "rror" not in service.tail(), service.tail()


def _path(service: Process, probe: str) -> str:
    path: str = container(service.name)[probe]["httpGet"]["path"]
    return path


@pytest.mark.ci
def test_the_watcher_writes_only_to_its_temporary_folder(place):
    """And is ready, with its settings and tokens from where they are mounted."""
    (port,) = free_ports(1)
    log = f"sqlite:///{place / 'log.db'}"
    open_log(log).close()
    changes = {"0.0.0.0:9095": f"127.0.0.1:{port}"}
    watcher = running("tpc-watcher", place, changes, {"TPC_LOG": log}, read_only=True)
    with stopping(watcher):
        watcher.start()
        for probe in ("readinessProbe", "livenessProbe"):
            url = f"http://127.0.0.1:{port}{_path(watcher, probe)}"
            watcher.until_answers(url, 120)
    assert "Traceback" not in watcher.tail(), watcher.tail()


@pytest.mark.nightly
@pytest.mark.spark
def test_the_job_writes_to_the_participant(place):
    """By the programs and commands of the manifests, with Spark on this machine."""
    (port,) = free_ports(1)
    url, database = f"http://127.0.0.1:{port}", place / "ledger.db"
    ledger = running(
        "ledger",
        place,
        {"0.0.0.0:8081": f"127.0.0.1:{port}"},
        files={"database/url": f"sqlite:///{database}"},
    )
    (place / "state" / "in").mkdir(parents=True)
    (place / "state" / "in" / "1.json").write_text('{"id": 1, "amount": 9.5}')
    (place / "spark").mkdir()
    here = {name: v for name, v in SPARK.items() if "kubernetes" not in name} | HERE
    lines = "\n".join(f"{name} {value}" for name, value in here.items())
    (place / "spark" / "spark.properties").write_text(lines)
    changes = {
        "/spark/": f"{place}/spark/",
        "/srv/app": str(FOLDER),
        "/srv/state": f"{place}/state",
        "http://ledger:8081": url,
    }
    job = running("orders", place, changes, {"TPC_LOG": f"sqlite:///{place}/log.db"})
    with stopping(ledger, job):
        ledger.start()
        ledger.until_answers(f"{url}{_path(ledger, 'readinessProbe')}", 120)
        job.start()
        rows = until(lambda: _orders(database), tell=lambda _: job.tail())
        assert rows == [(1, 9.5)]
        job.kill()


HERE = {
    "spark.master": "local[2]",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.port": "0",
    "spark.driver.blockManager.port": "0",
    "spark.pyspark.python": sys.executable,
    "spark.ui.enabled": "false",
}
"""Properties of the driver where there is no cluster."""


def _orders(database: Path) -> list[tuple[int, float]]:
    with contextlib.closing(sqlite3.connect(database)) as file:
        try:
            return file.execute("SELECT id, amount FROM orders").fetchall()
        except sqlite3.OperationalError:
            return []  # there is no table before the first batch
