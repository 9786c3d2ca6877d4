"""A REST catalog of Iceberg: the protocol, over a catalog that pyiceberg has."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from typing import Any

from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import CommitTableRequest

from support.served import StandIn
from support.waiting import PATIENT

_TABLE = re.compile(r"/v1/namespaces/(?P<namespace>[^/]+)/tables/(?P<table>[^/]+)")


class RestCatalog(ThreadingHTTPServer):
    """Keeps tables where another catalog does; `fault` says how a commit goes wrong.

    "lose": it is carried out, and the answer is lost; "refuse": neither, and the answer
    is that of a gateway; "late": likewise, but `deliver` carries it out; "hang": no
    answer, until `thawed` is set.
    """

    def __init__(self, behind: Any, token: str) -> None:
        self.behind = behind
        self.token = token
        self.fault: str | None = None
        self.deliver: Callable[[], object] | None = None
        self.thawed = threading.Event()
        self.commits = 0
        self._one_at_a_time = threading.Lock()  # SQLite has one writer
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def load(self, name: str) -> Any:
        table = self.behind.load_table(name)
        return _answer_of(table.metadata, table.metadata_location)

    def commit(self, name: str, body: bytes) -> Any:
        request = CommitTableRequest.model_validate_json(body)
        with self._one_at_a_time:
            table = self.behind.load_table(name)
            done = self.behind.commit_table(
                table, request.requirements, request.updates
            )
        return _answer_of(done.metadata, done.metadata_location)


def _answer_of(metadata: Any, location: str) -> dict[str, Any]:
    plain = json.loads(metadata.model_dump_json())
    return {"metadata": plain, "metadata-location": location}


class _Handler(StandIn):
    server: RestCatalog

    def _serve(self) -> None:
        body = self.body()
        if self.headers.get("Authorization") != f"Bearer {self.server.token}":
            self._say(401, _error("NotAuthorizedException", "no token"))
        elif self.path.startswith("/v1/config"):
            self._say(200, {"defaults": {}, "overrides": {}})
        elif (made := _TABLE.fullmatch(self.path.partition("?")[0])) is None:
            self._say(404, _error("NoSuchEndpoint", self.path))
        else:
            self._serve_table(".".join(made.group("namespace", "table")), body)

    def _serve_table(self, name: str, body: bytes) -> None:
        fault = self.server.fault if self.command == "POST" else None
        try:
            if self.command == "GET":
                self._say(200, self.server.load(name))
                return
            self.server.commits += 1
            if fault == "hang":
                self.server.thawed.wait(PATIENT)
                return
            if fault == "late":
                self.server.deliver = lambda: self.server.commit(name, body)
            if fault in ("late", "refuse"):
                self._say(504, _error("GatewayTimeout", "no answer from upstream"))
                return
            answer = self.server.commit(name, body)
            if fault != "lose":
                self._say(200, answer)
        except NoSuchTableError as error:
            self._say(404, _error("NoSuchTableException", str(error)))
        except CommitFailedException as error:
            self._say(409, _error("CommitFailedException", str(error)))

    def _say(self, status: int, what: dict[str, Any]) -> None:
        self.answer(status, json.dumps(what).encode(), "application/json")

    do_GET = do_POST = _serve  # noqa: N815


def _error(kind: str, message: str) -> dict[str, Any]:
    return {"error": {"type": kind, "message": message, "code": 0}}
