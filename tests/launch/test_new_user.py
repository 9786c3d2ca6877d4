"""The manual's page is followed to its end, with the programs that it names."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from backends.backend import Backend, Loopback, wait_for
from backends.jaeger import jaeger
from support import apiserver as real
from support.cluster import kubeconfig_of
from support.kubelet import Kubelet
from support.programs import ran
from support.waiting import AT_LAST, until

from participants.processes import Process, free_ports, stopping
from tracing_2pc.testing import Collector

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "launch.md").read_text(encoding="utf-8")


@contextlib.contextmanager
def backend(folder: Path) -> Iterator[Backend]:
    """A real Jaeger, where there is one."""
    if "TPC_JAEGER" in os.environ:
        with jaeger(Path(os.environ["TPC_JAEGER"]), folder) as running:
            yield running
        return
    with Collector() as collector:
        yield Loopback(collector)


class NewUser:
    """Has a shell, the page, and nothing that the page does not give."""

    def __init__(self, world, endpoint: str) -> None:
        self.folder = world.folder / "user"
        self.folder.mkdir()
        (self.folder / "examples").symlink_to(ROOT / "examples")
        admin = world.kubelet.cluster
        config = self.folder / "kubeconfig"
        config.write_text(kubeconfig_of(admin.url, real.ADMIN, admin.ca_file))
        programs = (
            Path(os.environ["TPC_KUBERNETES"]).parent,
            Path(sys.executable).parent,
        )
        path = os.pathsep.join((*map(str, programs), os.environ["PATH"]))
        self.told = {**os.environ, "KUBECONFIG": str(config), "PATH": path}
        self.told["TPC_LOG"] = world.settings.log
        (container,) = world.item["job"]["spec"]["template"]["spec"]["containers"]
        self.here = {  # where the page's own addresses are
            "postgresql://tpc@postgres.streams/tpc": world.settings.log,
            "http://jaeger.monitoring:4318": endpoint,
            "http://ledger.streams:8080": world.item["participants"]["ledger"],
            "registry.example:5000/totals": world.repository.name,
            '["python", "job.py"]': json.dumps(container["command"]),
        }

    def block(self, language: str, containing: str) -> str:
        found = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)
        (only,) = [text for text in found if containing in text]
        for there, here in self.here.items():
            only = only.replace(there, here)
        return only

    def does(self, script: str) -> str:
        how = {"env": self.told, "cwd": self.folder, "timeout": AT_LAST}
        done = ran(["bash", "-euc", script], **how)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def looks(self) -> list[str]:
        """Ask as the page does; return the cells of its one resource."""
        lines = self.does("kubectl get tsj --namespace streams").splitlines()
        assert re.split(r"\s{2,}", lines[0])[0] == "NAME"
        return re.split(r"\s{2,}", lines[1].strip())

    def sees_in_console(self, url: str, transaction: str) -> str:
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        opener.addheaders = [("Sec-Fetch-Site", "same-origin")]
        login = opener.open(f"{url}/login").read().decode()
        (csrf,) = set(re.findall(r'name="csrf" value="([^"]+)"', login))
        tokens = (self.folder / "tokens").read_text()
        (token,) = re.findall(r"^viewer (.+)$", tokens, re.M)
        fields = {"csrf": csrf, "token": token, "name": ""}
        opener.open(f"{url}/login", urlencode(fields).encode())
        page: str = opener.open(f"{url}/transactions/{transaction}").read().decode()
        return " ".join(re.sub(r"<[^>]+>", " ", page).split())


@pytest.mark.kubernetes
@pytest.mark.nightly
def test_a_new_user_sees_one_launch_commit_and_one_rolled_back(world, monkeypatch):
    """In `kubectl get tsj`, in the console and in Jaeger.

    The operator runs as its Deployment says, with the rights of its role.
    """
    if world.server is not None:
        pytest.skip("kubectl asks a real API server")
    admin = world.kubelet.cluster
    account = kubeconfig_of(admin.url, real.ACCOUNTS["streams"], admin.ca_file)
    (world.folder / "kubeconfig").write_text(account)  # as a pod's service account
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    build = f'test "$(params.source)" != {BROKEN} || {{ echo no such branch; exit 1; }}'
    push = ["env", "IMAGE=$(params.image)", *world.item["build"]["command"][:-1], "x"]
    with contextlib.ExitStack() as stack:
        traces = stack.enter_context(backend(world.folder))
        user = NewUser(world, traces.endpoint)
        kubelet = Kubelet(admin, "streams")
        stack.callback(kubelet.close)
        kubelet.tasks["build-and-push"] = [
            "sh",
            "-ec",
            f'{build}; exec "$@"',
            "sh",
            *push,
        ]
        resource = user.block("yaml", "kind: TransactionalSparkJob")
        (user.folder / "totals.yaml").write_text(resource)
        user.does(user.block("sh", "operator manifests"))
        committed = until(user.looks, lambda cells: cells[1:2] == ["Committed"])
        assert world.live is not None
        user.does(user.block("sh", "kubectl patch tsj"))
        back = until(user.looks, lambda cells: cells[1:2] == ["RolledBack"])
        assert "no such branch" in back[-1]
        assert world.generations() == [1]
        ids = committed[3], back[3]
        for id_ in ids:
            wait_for(traces, id_, lambda spans: "tpc.transaction" in _names(spans))
        assert "BuiltImage.commit" in _names(wait_for(traces, ids[0], bool))
        assert "SuspendedJob.pre_commit" not in _names(wait_for(traces, ids[1], bool))
        (port,) = free_ports(1)
        console = Process(
            "console",
            [sys.executable, "-m", "tracing_2pc", "console", "--listen",
             f"127.0.0.1:{port}", "--tokens-file", str(user.folder / "tokens")],
            user.folder / "console.log",
            {"TPC_LOG": world.settings.log},
        )  # fmt: skip
        stack.enter_context(stopping(console))
        console.start()
        url = f"http://127.0.0.1:{port}"
        console.until_answers(f"{url}/login", AT_LAST)
        assert "committed" in user.sees_in_console(url, ids[0])
        assert "no such branch" in user.sees_in_console(url, ids[1])


BROKEN = "git@git.example:totals#v8"


def _names(spans) -> set[str]:
    return {span["name"] for span in spans}
