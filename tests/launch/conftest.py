"""A registry, a cluster that runs things, a service, and a file for all of them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import yaml
from support import apiserver as real
from support import registry as registries
from support.cluster import FakeCluster, fake_cluster, kubeconfig_of
from support.kubelet import Kubelet
from support.waiting import PAUSE

from tracing_2pc.core.log_reader import TransactionFilter, TransactionSummary
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.settings import Settings
from tracing_2pc.launch import Launched, LaunchFile, launch
from tracing_2pc.launch.cluster import Cluster
from tracing_2pc.launch.registry import Repository
from tracing_2pc.participant import TaggedRows
from tracing_2pc.store import SqlDecisionLog, open_log
from tracing_2pc.testing import served

Fault = Callable[[str, str], "str | None"]
SUPPORT = Path(__file__).parents[1]
PUSH = [sys.executable, str(SUPPORT / "support" / "registry.py")]
SLEEPS = [sys.executable, "-c", "import signal; signal.pause()"]


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("registry")


@pytest.fixture(scope="session")
def registry(images: Path) -> Iterator[str]:
    with registries.registry(images) as host:
        yield host


@dataclasses.dataclass
class World:
    """One launch's surroundings; `item` is what its file says."""

    folder: Path
    kubelet: Kubelet
    server: FakeCluster | None  # None: it is the real one
    repository: Repository
    item: dict[str, Any]
    ledger: Path
    images: Path
    limits: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def settings(self) -> Settings:
        log = f"sqlite:///{self.folder}/log.db"
        waits = {"backoff_base": PAUSE, "backoff_cap": PAUSE, **self.limits}
        return Settings(log=log, **waits)  # type: ignore[arg-type]

    def fails(self, fault: Fault) -> None:
        """Have requests of a launch refused, or their answers lost."""
        if self.server is None:
            pytest.skip("only the stand-in has faults")
        self.server.fault = fault

    def write(self) -> Path:
        path = self.folder / "job.yaml"
        path.write_text(yaml.safe_dump(self.item))
        return path

    @contextlib.contextmanager
    def log(self) -> Iterator[SqlDecisionLog]:
        with contextlib.closing(open_log(self.settings.log or "")) as log:
            yield log

    def launch(self, **how: Any) -> Launched:
        with self.log() as log:
            file = LaunchFile.read(self.write())
            return launch(file, log, self.settings, **how)

    def launches(self) -> list[TransactionSummary]:
        """Those on record, the newest first."""
        with self.log() as log:
            return log.transactions(TransactionFilter())

    def handles(self, transaction: TransactionId, name: str) -> list[Any]:
        """What a commit tells a participant."""
        with self.log() as log:
            record = log.read(transaction)
        assert record is not None
        return [receipt.handle for receipt in record.chosen(name)]

    def gives_up(self) -> None:
        """A commit that is not acknowledged is left, after two tries."""
        self.limits |= {"on_pending": "fail", "inline_tries": 2}

    @property
    def application(self) -> str:
        return LaunchFile.read(self.write()).application

    def pushes(self, text: str) -> None:
        self.item["build"]["command"] = [*PUSH, text]

    @property
    def live(self) -> str | None:
        """The digest under the release tag."""
        found = self.repository.get("live")
        return None if found is None else found.digest

    def forget_images(self, *, layers: bool) -> None:
        """Take every manifest and tag from the registry, and the layers, too."""
        kept = self.images / "images" / "docker" / "registry" / "v2"
        name = self.repository.name.partition("/")[2]
        shutil.rmtree(kept / "repositories" / name / "_manifests")
        if layers:
            shutil.rmtree(kept / "blobs")

    def staged(self, transaction: object) -> bool:
        return self.repository.get(f"tpc-{transaction}") is not None

    def jobs(self) -> dict[str, bool]:
        """Each job that is there, and whether it runs."""
        found = self.kubelet.named("Job")
        return {name: not job["spec"].get("suspend") for name, job in found.items()}

    def rows(self) -> list[Any]:
        """What readers of the service see."""
        return self._rows("job, version")

    def generations(self) -> list[Any]:
        """The same of resources."""
        return [generation for (generation,) in self._rows("generation")]

    def _rows(self, columns: str) -> list[Any]:
        engine = sa.create_engine(f"sqlite:///{self.ledger}")
        try:
            with engine.connect() as connection:
                found = connection.execute(sa.text(f"SELECT {columns} FROM releases"))
                return [tuple(row) for row in found]
        except sa.exc.OperationalError:
            return []  # no table yet
        finally:
            engine.dispose()


@pytest.fixture(scope="session")
def apiserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    with real.apiserver(tmp_path_factory.mktemp("apiserver")) as (url, certificate):
        real.prepare(Cluster(url, certificate, real.ADMIN))
        yield url, certificate


@pytest.fixture
def cluster(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[FakeCluster | None, Cluster]]:
    """The stand-in, or in `make test-k8s` the real one; and who may do all there."""
    kubeconfig = tmp_path / "kubeconfig"
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    if "TPC_KUBERNETES" not in os.environ:
        with fake_cluster(kubeconfig) as (server, url):
            yield server, Cluster(url)
        return
    url, certificate = request.getfixturevalue("apiserver")
    kubeconfig.write_text(kubeconfig_of(url, real.OPERATOR, certificate))
    admin = Cluster(url, certificate, real.ADMIN)
    try:
        yield None, admin
    finally:
        real.clear(admin)


@pytest.fixture
def world(
    registry: str,
    images: Path,
    cluster: tuple[FakeCluster | None, Cluster],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[World]:
    ledger = tmp_path / "ledger.db"
    monkeypatch.setenv("TPC_TOKEN", "asked-for-by-nobody")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(SUPPORT), *sys.path)))
    repository = Repository(f"{registry}/{tmp_path.name.lower().replace('_', '-')}")
    rows = TaggedRows(f"sqlite:///{ledger}", table="releases")
    server, admin = cluster
    with served(rows, "ledger") as url:
        kubelet = Kubelet(admin, "default")
        container = {"name": "totals", "image": "built", "command": SLEEPS}
        pod = {"restartPolicy": "Never", "containers": [container]}
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "totals"},
            "spec": {"template": {"spec": pod}},
        }
        item = {
            "build": {
                "image": repository.name,
                "tag": "live",
                "command": [],
                "environment": ["PYTHONPATH"],
            },
            "job": job,
            "participants": {"ledger": url},
            "record": {"job": "totals", "version": 1},
        }
        made = World(tmp_path, kubelet, server, repository, item, ledger, images)
        made.pushes("first")
        try:
            yield made
        finally:
            kubelet.close()
