"""Which cluster is asked, by whose rights, and what of its answers is read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.endless import BODY, HEAD, drip, flood
from support.served import StandIn, served
from support.waiting import SOON

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.launch import LaunchFile, cluster
from tracing_2pc.launch import own_cluster as own
from tracing_2pc.launch.cluster import Cluster, NoClusterError, UnreachableError
from tracing_2pc.launch.own_cluster import own_cluster


def kubeconfig(
    *, context: Any = None, server: Any = None, user: Any = None
) -> dict[str, Any]:
    """A whole one, but for what is given."""
    there = {"server": "https://api:6443", **(server or {})}
    where = {"cluster": "c", "user": "u", **(context or {})}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "preferences": {},
        "current-context": "now",
        "contexts": [{"name": "now", "context": where}],
        "clusters": [{"name": "c", "cluster": there}],
        "users": [
            {"name": "u", "user": {"token": "a-token"} if user is None else user}
        ],
    }


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write files, and have them as `KUBECONFIG`."""

    def written(*items: dict[str, Any] | str | None) -> list[Path]:
        paths = []
        for number, item in enumerate(items):
            folder = tmp_path / str(number)
            folder.mkdir()
            paths.append(folder / "config")
            if item is not None:
                text = item if isinstance(item, str) else yaml.safe_dump(item)
                paths[-1].write_text(text)
        monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, paths)))
        return paths

    return written


REFUSED = {
    "user 'u' has 'exec'": kubeconfig(user={"exec": {"command": "aws"}}),
    "user 'u' has 'auth-provider'": kubeconfig(user={"auth-provider": {"name": "gcp"}}),
    "user 'u' has 'username'": kubeconfig(user={"username": "a"}),
    "user 'u' has 'as-user-extra'": kubeconfig(
        user={"token": "t", "as": "a", "as-user-extra": {"scopes": ["x"]}}
    ),
    "user 'u': as-uid and as-groups need": kubeconfig(user={"as-groups": ["a"]}),
    "user 'u': as-groups: expected a list": kubeconfig(
        user={"as": "a", "as-groups": "admins"}
    ),
    "user 'u': as: expected text": kubeconfig(user={"as": ["a"]}),
    "user 'u': a client-certificate needs": kubeconfig(
        user={"client-certificate": "a.crt"}
    ),
    "user 'u': client-key-data is no base64": kubeconfig(user={"client-key-data": "!"}),
    "cluster 'c' has 'insecure-skip-tls-verify'": kubeconfig(
        server={"insecure-skip-tls-verify": True}
    ),
    "cluster 'c' has 'proxy-url'": kubeconfig(server={"proxy-url": "http://proxy"}),
    "cluster 'c' has 'tls-server-name'": kubeconfig(server={"tls-server-name": "api"}),
    "cluster 'c': server: expected https": kubeconfig(server={"server": "http://api"}),
    "cluster 'c': server: a URL must not hold": kubeconfig(
        server={"server": "https://a:b@api"}
    ),
    "cluster 'c': server: expected a host": kubeconfig(
        server={"server": "https://0.0.0.0.1:6443"}
    ),
    "context 'now' has 'namespaces'": kubeconfig(context={"namespaces": ["a"]}),
    "no context 'gone'": kubeconfig() | {"current-context": "gone"},
    "no current-context": kubeconfig() | {"current-context": ""},
    "no user 'v'": kubeconfig(context={"user": "v"}),
    "no cluster 'd'": kubeconfig(context={"cluster": "d"}),
    "cannot be read": "a: b\na: c\n",
    "cannot be read as": "- no\n- object\n",
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_not_understood_is_refused_by_name(write, reason):
    """It would be another cluster, or other rights, than kubectl has by it."""
    write(REFUSED[reason])
    with pytest.raises(ConfigurationError) as refused:
        own_cluster()
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_changes_nothing_is_left_alone(write):
    """As minikube and others write it; fields that are off, too."""
    more = {"extensions": [{"name": "x", "extension": {"version": 1}}]}
    off = {"insecure-skip-tls-verify": False, "disable-compression": True}
    write(kubeconfig(context=more, server=more | off, user={"token": "t"} | more))
    assert own_cluster() == Cluster("https://api:6443", token="t")


@pytest.mark.parametrize(
    ("told", "there"), [({"namespace": "streams"}, "streams"), ({}, "default")]
)
def test_a_job_without_a_namespace_goes_where_kubectl_would_put_it(write, told, there):
    """Into the context's; where it has none, into `default`."""
    write(kubeconfig(context=told))
    assert LaunchFile.of(a_file()).plan.namespace == there
    assert LaunchFile.of(a_file(namespace="other")).plan.namespace == "other"


def test_in_a_pod_it_goes_into_the_pods_namespace(tmp_path, monkeypatch):
    """The service account says it."""
    (tmp_path / "namespace").write_text("streams")
    monkeypatch.setattr(own, "_SERVICE_ACCOUNT", tmp_path)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert LaunchFile.of(a_file()).plan.namespace == "streams"


def a_file(**meta: str) -> dict[str, Any]:
    container = {"name": "totals", "image": "r:5000/t@sha256:" + "a" * 64}
    return {
        "job": {
            "kind": "Job",
            "metadata": {"name": "totals", **meta},
            "spec": {"template": {"spec": {"containers": [container]}}},
        }
    }


def test_several_files_are_one(write):
    """Of each name the first one counts; a path begins at its own file."""
    first = {"clusters": [], "contexts": kubeconfig()["contexts"]}
    user = {"tokenFile": "token", "client-certificate": "a.crt", "client-key": "a.key"}
    second = kubeconfig(context={"cluster": "x"}, user=user)
    third = kubeconfig(server={"server": "https://elsewhere"}, user={"token": "other"})
    folders = [p.parent for p in write(first, None, second, third)]
    assert own_cluster() == Cluster(
        "https://api:6443",
        token_file=str(folders[2] / "token"),
        certificate=(str(folders[2] / "a.crt"), str(folders[2] / "a.key")),
    )


def test_an_empty_file_among_several_says_nothing(write):
    """As to kubectl, whether it holds a comment or not a byte."""
    write("", "# nothing yet\n", kubeconfig())
    assert own_cluster() == Cluster("https://api:6443", token="a-token")


def test_every_address_of_this_machine_is_this_machine(write):
    """As k3d writes it; what only begins so is no address."""
    write(kubeconfig(server={"server": "https://0.0.0.0:6443"}))
    assert own_cluster().url == "https://127.0.0.1:6443"


def test_no_file_is_no_cluster(write):
    """Said by its path."""
    (path,) = write(None)
    with pytest.raises(NoClusterError, match=str(path)):
        own_cluster()


class Server(ThreadingHTTPServer):
    """Keeps the headers that it was asked with; `speaks` answers instead of it."""

    def __init__(self) -> None:
        self.asked: list[list[tuple[str, str]]] = []
        self.speaks = lambda handler: handler.answer(200, b'{"items": [1]}')
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(StandIn):
    server: Server

    def do_GET(self) -> None:  # noqa: N802
        self.server.asked.append(self.headers.items())
        self.server.speaks(self)
        self.close_connection = True


@pytest.fixture
def server() -> Iterator[Server]:
    with served(Server()) as made:
        yield made


def test_rights_of_another_are_asked_for(write, server):
    """`as:` is what kubectl would do by this file: never with rights of our own."""
    user = {"token": "mine", "as": "viewer", "as-uid": "7", "as-groups": ["a", "b"]}
    write(kubeconfig(server={"server": server.url}, user=user))
    assert own_cluster().list("Job", "default", {}) == [1]
    (headers,) = server.asked
    assert [h for h in headers if h[0].startswith("Impersonate")] == [
        ("Impersonate-User", "viewer"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
    ]
    assert ("Authorization", "Bearer mine") in headers


@pytest.mark.ci
@pytest.mark.parametrize("part", [HEAD, BODY])
@pytest.mark.parametrize("speaks", [drip, flood])
def test_an_answer_without_end_is_given_up(server, part, speaks):
    """In bytes and in time."""
    server.speaks = lambda handler: speaks(handler, part)
    with pytest.raises(UnreachableError, match=f"no answer of {server.url}"):
        Cluster(server.url, timeout=SOON / 4).get("Job", "default", "totals")


def test_a_list_without_end_is_given_up(server, monkeypatch):
    """Each page names another one."""
    monkeypatch.setattr(cluster, "_MOST_PAGES", 3)
    more = b'{"items": [1], "metadata": {"continue": "on"}}'
    server.speaks = lambda handler: handler.answer(200, more)
    with pytest.raises(cluster.ClusterError, match="has no end"):
        Cluster(server.url).list("Job", "default", {})
    assert len(server.asked) == 3
