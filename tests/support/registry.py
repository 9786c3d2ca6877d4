"""A real container registry, Debian's docker-registry; and what pushes to one."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import urllib3

from participants.processes import free_ports
from support.programs import left_out
from support.served import StandIn
from support.waiting import PATIENT, until

_UNPACKED = Path(__file__).parents[2] / ".cache" / "registry"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@contextlib.contextmanager
def registry(folder: Path) -> Iterator[str]:
    """Run one whose images are in a folder; yield its `host:port`."""
    program = shutil.which("docker-registry", path=f"{_UNPACKED}:/usr/bin")
    if program is None:
        left_out("there is no docker-registry: `tools/registry` unpacks one")
    host = f"127.0.0.1:{free_ports(1)[0]}"
    file = folder / "registry.yml"
    file.write_text(
        "version: 0.1\n"
        "log: {level: error}\n"
        f"storage: {{filesystem: {{rootdirectory: {folder}/images}}, "
        "delete: {enabled: true}}\n"
        f"http: {{addr: '{host}'}}\n"
    )
    process = subprocess.Popen(
        [program, "serve", str(file)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OTEL_TRACES_EXPORTER": "none"},
    )
    try:
        until(lambda: _answers(host))
        yield host
    finally:
        process.kill()
        process.wait()


class Front(ThreadingHTTPServer):
    """Stands before a registry; `fault` says of a request what goes wrong with it.

    "refuse": 403; "lose": it is done, and the answer is lost; "hang": neither, until
    `thawed` is set.
    """

    def __init__(self, host: str) -> None:
        self.fault: Callable[[str, str], str | None] = lambda _method, _path: None
        self.thawed = threading.Event()
        self.behind = host
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class _Handler(StandIn):
    server: Front

    def _serve(self) -> None:
        fault = self.server.fault(self.command, self.path)
        body = self.body()
        if fault == "hang":
            self.server.thawed.wait(PATIENT)
            return
        if fault == "refuse":
            self.answer(403)
            return
        url = f"http://{self.server.behind}{self.path}"
        told = dict(self.headers)
        with urllib3.PoolManager() as pool:
            how = {"body": body, "headers": told, "retries": False, "redirect": False}
            answer = pool.request(self.command, url, **how)
        if fault == "lose":
            return
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.data)

    do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815


def _answers(host: str) -> bool:
    with contextlib.suppress(urllib3.exceptions.HTTPError), urllib3.PoolManager() as p:
        return p.request("GET", f"http://{host}/v2/", retries=False).status == 200
    return False


def push(image: str, text: str) -> str:
    """Push an image of one layer under a reference; return its digest."""
    place, _, tag = image.rpartition(":")
    host, _, path = place.partition("/")
    base = f"http://{host}/v2/{path}"
    with urllib3.PoolManager() as pool:

        def blob(data: bytes, kind: str) -> dict[str, object]:
            digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
            begun = pool.request("POST", f"{base}/blobs/uploads/")
            where = begun.headers["Location"]
            joined = "&" if "?" in where else "?"
            ended = pool.request("PUT", f"{where}{joined}digest={digest}", body=data)
            assert ended.status == 201, ended.data
            return {"mediaType": kind, "digest": digest, "size": len(data)}

        of = "application/vnd.oci.image"
        config = blob(b'{"architecture":"amd64","os":"linux"}', f"{of}.config.v1+json")
        layer = blob(text.encode(), f"{of}.layer.v1.tar")
        item = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config}
        body = json.dumps({**item, "layers": [layer]}).encode()
        headers = {"Content-Type": MANIFEST}
        url = f"{base}/manifests/{tag}"
        done = pool.request("PUT", url, body=body, headers=headers)
        assert done.status == 201, done.data
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


if __name__ == "__main__":  # as a build does it
    push(os.environ["IMAGE"], sys.argv[1])
