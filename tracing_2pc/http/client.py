"""One participant over HTTP."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import IO, ClassVar
from urllib.parse import urlsplit

from tracing_2pc.http.connection import ask, pool_of
from tracing_2pc.wire.client import WireParticipant


@dataclasses.dataclass(frozen=True)
class HttpParticipant(WireParticipant):
    """A participant as `openapi.yaml` describes it. Picklable; opens nothing."""

    default_ports: ClassVar[Mapping[str, int]] = {"http": 80, "https": 443}

    def exchange(
        self,
        method: str,
        path: str,
        body: bytes | IO[bytes] | None,
        headers: Mapping[str, str],
        timeout: float,
        most: int,
    ) -> tuple[int, str, bytes]:
        pool = pool_of(self.url, self.timeout, os.getpid())
        path = urlsplit(self.url).path + path
        status, answer_headers, content = ask(
            pool, method, path, body, headers, timeout, most
        )
        return status, answer_headers.get("Content-Type", ""), content
