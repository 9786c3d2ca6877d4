"""A real kube-apiserver with etcd, for the tests of launches: `make test-k8s`."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import urllib3
import yaml

from participants.processes import free_ports
from support.programs import ran
from support.waiting import until
from tracing_2pc.launch.cluster import Cluster, ClusterError

CACHE = Path(__file__).parents[2] / ".cache"
ADMIN, OPERATOR = "a-token-of-the-admin", "a-token-of-the-operator"
ACCOUNTS = {"default": OPERATOR, "streams": f"{OPERATOR}-of-streams"}
KINDS = ("TransactionalSparkJob", "Job", "Deployment", "TaskRun", "Pod", "ConfigMap")
_ANY = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


@contextlib.contextmanager
def apiserver(folder: Path) -> Iterator[tuple[str, str]]:
    """Run one with roles; yield its URL and the file with its certificate."""
    program = os.environ["TPC_KUBERNETES"]
    etcd = shutil.which("etcd", path=f"{CACHE / 'etcd'}:/usr/bin")
    assert etcd is not None, "tools/unpack etcd etcd-server"
    clients, peers, port = free_ports(3)
    at, to = f"http://127.0.0.1:{clients}", f"http://127.0.0.1:{peers}"
    words = f"--data-dir {folder}/etcd --listen-client-urls {at}"
    words += f" --advertise-client-urls {at} --listen-peer-urls {to}"
    words += " --unsafe-no-fsync --log-level error"
    tokens = f'{ADMIN},admin,1,"system:masters"\n'
    for namespace, token in ACCOUNTS.items():
        tokens += f"{token},system:serviceaccount:{namespace}:tpc-operator,{token}\n"
    (folder / "tokens.csv").write_text(tokens)
    key = folder / "service-accounts.key"
    made = ["openssl", "genrsa", "-out", key, "2048"]
    subprocess.run(made, check=True, capture_output=True)
    flags = [
        f"--etcd-servers={at}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={folder}/certificates",
        f"--token-auth-file={folder}/tokens.csv",
        "--authorization-mode=RBAC",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--disable-admission-plugins=ServiceAccount",
        "--advertise-address=127.0.0.1",
        "--endpoint-reconciler-type=none",
    ]
    with contextlib.ExitStack() as stack:
        log = stack.enter_context((folder / "log").open("wb"))
        for command in ([etcd, *words.split()], [program, *flags]):
            process = subprocess.Popen(command, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.kill)
        url = f"https://127.0.0.1:{port}"
        certificate = folder / "certificates" / "apiserver.crt"
        until(
            lambda: _is_ready(url, certificate),
            tell=lambda _: (folder / "log").read_text(),
        )
        yield url, str(certificate)


def _is_ready(url: str, certificate: Path) -> bool:
    if not certificate.exists():
        return False
    headers = {"Authorization": f"Bearer {ADMIN}"}
    with (
        contextlib.suppress(urllib3.exceptions.HTTPError),
        urllib3.PoolManager(ca_certs=str(certificate), headers=headers) as pool,
    ):
        return pool.request("GET", f"{url}/readyz", retries=False).status == 200
    return False


_RBAC: Final = "rbac.authorization.k8s.io"
_MORE: Final = {"name": "tpc-deployments", "namespace": "default"}
_OF_DEPLOYMENTS: Final = (
    {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "Role",
        "metadata": _MORE,
        "rules": [
            {
                "apiGroups": ["apps"],
                "resources": ["deployments"],
                "verbs": ["get", "list", "create", "patch", "delete"],
            }
        ],
    },
    {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": _MORE,
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": _MORE["name"]},
        "subjects": [
            {
                "kind": "ServiceAccount",
                "name": "tpc-operator",
                "namespace": "default",
            }
        ],
    },
)
"""What a launch needs whose file has a Deployment, as the manual says: the operator,
which makes none, has not got it."""


def prepare(admin: Cluster) -> None:
    """Apply the operator's manifests; and Tekton's kinds.

    The Deployment is only held against the API: tests run operators of their own.
    """
    command = [sys.executable, "-m", "tracing_2pc", "operator", "manifests"]
    written = ran([*command, "--image", "registry.example/tracing-2pc:1"])
    assert written.returncode == 0, written.stderr
    kinds = [_of_tekton(kind) for kind in ("Task", "TaskRun")]
    for item in [*yaml.safe_load_all(written.stdout), *kinds, *_OF_DEPLOYMENTS]:
        post(admin, item)
    until(lambda: _lists(admin))


def clear(admin: Cluster) -> None:
    """Delete what a test has left, whatever holds it."""
    for kind in KINDS:
        for item in admin.list(kind, "default", {}):
            name = item["metadata"]["name"]
            if item["metadata"].get("finalizers"):
                gone: dict[str, Any] = {"metadata": {"finalizers": None}}
                admin.patch(kind, "default", name, gone)
            admin.delete(kind, "default", name)


def post(admin: Cluster, item: dict[str, Any]) -> None:
    """Create an object of a kind that no launch asks for."""
    group, kind = item["apiVersion"], item["kind"]
    base = f"/apis/{group}" if "/" in group else f"/api/{group}"
    where = item["metadata"].get("namespace")
    space = f"/namespaces/{where}" if where else ""
    path = f"{base}{space}/{kind.lower()}s{'?dryRun=All' * (kind == 'Deployment')}"
    admin._ask("POST", path, item)


def _lists(admin: Cluster) -> bool:
    with contextlib.suppress(ClusterError):
        return all(admin.list(kind, "default", {}) is not None for kind in KINDS)
    return False


def _of_tekton(kind: str) -> dict[str, Any]:
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": _ANY},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.lower()}s.tekton.dev"},
        "spec": {
            "group": "tekton.dev",
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": f"{kind.lower()}s"},
            "versions": [version],
        },
    }
