"""A real container registry, Debian's docker-registry; and what pushes to one."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import urllib3

from support.programs import left_out
from support.waiting import until

_UNPACKED = Path(__file__).parents[2] / ".cache" / "registry"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@contextlib.contextmanager
def registry(folder: Path) -> Iterator[str]:
    """Run one whose images are in a folder; yield its `host:port`."""
    program = shutil.which("docker-registry", path=f"{_UNPACKED}:/usr/bin")
    if program is None:
        left_out("there is no docker-registry: `tools/registry` unpacks one")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{free.getsockname()[1]}"
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
