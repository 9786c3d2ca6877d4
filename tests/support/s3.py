"""The S3 of moto's server, as a process of its own: deltalake keeps Python's lock.

python -m support.s3      serves until its input ends; says its URL
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import boto3
from werkzeug.serving import WSGIRequestHandler, make_server

BUCKET = "lakes"
REGION = "eu-central-1"
SECRET = "of-moto"  # moto believes all

Fault = Literal["lose", "slow", "denied", "late"]
"""Its answer is lost; it is refused for now, or for want of a right; or it is done, and
said to have failed."""

_ERROR = "<Error><Code>{}</Code><Message>{}</Message></Error>"
_REFUSED = {
    "slow": ("503 Slow Down", "SlowDown", "Reduce your request rate."),
    "denied": ("403 Forbidden", "AccessDenied", "Access Denied"),
}


@dataclasses.dataclass
class S3:
    """A store with one bucket, as tests have it."""

    url: str

    @property
    def properties(self) -> dict[str, str]:
        """Of a sink; the secret is in a variable that `give_login` sets."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": SECRET,
            "AWS_SECRET_ACCESS_KEY": "env:LAKE_SECRET",
        }

    @property
    def options(self) -> dict[str, str]:
        """Of deltalake."""
        own = {"AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ALLOW_HTTP": "true"}
        return self.properties | own

    @contextlib.contextmanager
    def client(self) -> Iterator[Any]:
        login = {"aws_access_key_id": SECRET, "aws_secret_access_key": SECRET}
        client = boto3.client("s3", endpoint_url=self.url, region_name=REGION, **login)
        with contextlib.closing(client):
            yield client

    def keys(self, folder: str) -> list[str]:
        """Return what is below a folder of the bucket."""
        with self.client() as client:
            pages = client.get_paginator("list_objects_v2")
            found = pages.paginate(Bucket=BUCKET, Prefix=f"{folder}/")
            return [
                of["Key"].removeprefix(f"{folder}/")
                for page in found
                for of in page.get("Contents", ())
            ]

    def delete(self, *keys: str) -> None:
        with self.client() as client:
            for key in keys:
                client.delete_object(Bucket=BUCKET, Key=key)

    def fail(self, what: str, fault: Fault, *, times: int = 1) -> None:
        """Let this happen to the next requests that a pattern finds, `PUT /key …`."""
        self._ask("fail", {"what": what, "fault": fault, "times": times})

    def heal(self) -> None:
        """Let nothing happen any more."""
        self._ask("heal", {})

    def be_careless(self, careless: bool = True) -> None:
        """Heed no condition of a put, from now on."""
        self._ask("careless", {"careless": careless})

    def seen(self, what: str) -> list[str]:
        """Return the requests of which a pattern was found."""
        return [line for line in self._ask("seen", {}) if re.search(what, line)]

    def _ask(self, path: str, body: Mapping[str, Any]) -> Any:
        address = f"{self.url}/-/{path}"
        request = urllib.request.Request(address, json.dumps(body).encode())
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)


@contextlib.contextmanager
def s3() -> Iterator[S3]:
    """Serve a store with an empty bucket."""
    command = [sys.executable, "-m", "support.s3"]
    with subprocess.Popen(
        command,
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        store = S3(server.stdout.readline().strip())
        try:
            with store.client() as client:
                place = {"LocationConstraint": REGION}
                client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration=place)
            yield store
        finally:
            server.stdin.close()


class _Faulty:
    """moto's application, with the faults that it is told."""

    def __init__(self, behind: Callable[..., Iterable[bytes]]) -> None:
        self._behind = behind
        self._planned: list[dict[str, Any]] = []
        self._careless = False
        self._seen: list[str] = []
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path.startswith("/-/"):
            length = int(environ["CONTENT_LENGTH"])
            about = json.loads(environ["wsgi.input"].read(length))
            answer = json.dumps(self._told(path, about)).encode()
            return _answer(start, "200 OK", answer, "application/json")
        source = environ.get("HTTP_X_AMZ_COPY_SOURCE", "")
        query = environ.get("QUERY_STRING", "")
        source += "if nothing is there" * ("HTTP_IF_NONE_MATCH" in environ)
        line = f"{environ['REQUEST_METHOD']} {path} {query or source}".strip()
        with self._lock:
            self._seen.append(line)
            fault = self._next(line)
        if self._careless:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        if fault is None:
            return self._behind(environ, start)
        if fault in _REFUSED:
            status, *words = _REFUSED[fault]
            body = _ERROR.format(*words).encode()
            return _answer(start, status, body, "application/xml")
        [*self._behind(environ, lambda *_: None)]
        if fault == "late":
            return _answer(start, "500 Internal Server Error", b"", "text/plain")
        environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        return _answer(start, "200 OK", b"", "text/plain")

    def _told(self, path: str, about: dict[str, Any]) -> Any:
        if path == "/-/seen":
            return self._seen
        if path == "/-/fail":
            self._planned.append(about)
        if path == "/-/heal":
            self._planned.clear()
        self._careless = about.get("careless", self._careless)
        return None

    def _next(self, line: str) -> str | None:
        for plan in self._planned:
            if plan["times"] and re.search(plan["what"], line):
                plan["times"] -= 1
                return str(plan["fault"])
        return None


def _answer(start: Any, status: str, body: bytes, kind: str) -> list[bytes]:
    start(status, [("Content-Type", kind), ("Content-Length", str(len(body)))])
    return [body]


class _Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *_: Any) -> None:
        pass


def main() -> None:
    """Serve until the input ends."""
    from moto.server import DomainDispatcherApplication, create_backend_app

    faulty = _Faulty(DomainDispatcherApplication(create_backend_app))
    server = make_server(
        "127.0.0.1", 0, faulty, threaded=True, request_handler=_Handler
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)  # noqa: T201
    sys.stdin.read()


if __name__ == "__main__":
    main()
