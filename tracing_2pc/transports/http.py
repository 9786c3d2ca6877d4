"""One participant over HTTP: a urllib3 pool, no redirects, no proxies, no guessing."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import IO, Any, Final

import urllib3

from tracing_2pc.errors import (
    ConfigurationError,
    ParticipantRefusedError,
    ParticipantUnavailableError,
)
from tracing_2pc.model import BranchId, TransactionId, TransactionRecord
from tracing_2pc.settings import reveal
from tracing_2pc.states import Vote
from tracing_2pc.telemetry.spans import client_span, current_carrier
from tracing_2pc.transports import wire

_COMMITTED: Final = frozenset({"committed"})
_ABORTED: Final = frozenset({"aborted"})
_PREPARED: Final = frozenset({"prepared"})


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer, read whole and bounded."""

    status: int
    content_type: str
    body: bytes


@dataclasses.dataclass(frozen=True)
class HttpParticipant:
    """A participant as its contract describes it. Picklable; opens nothing until used.

    Args:
        name: its configured name.
        url: base URL, without a password.
        token: reference to the bearer token, read in each process when first used;
            None for a participant that was told to be insecure.
        timeout: seconds, to connect and for each read.
    """

    name: str
    url: str
    token: str | None
    timeout: float

    def prepare(
        self,
        transaction: TransactionId,
        branch: BranchId,
        body: Callable[[], IO[bytes]],
        *,
        rows: int,
        length: int,
        digest: str,
    ) -> Vote:
        """Send a branch, and return the vote for exactly these rows and this digest.

        Safe to repeat with the same bytes: the participant answers the same.

        Raises:
            ParticipantRefusedError: it votes abort, or counted something else.
            ParticipantUnavailableError: no answer; it may be prepared.
        """
        headers = {
            wire.TRANSACTION_HEADER: str(transaction),
            wire.BRANCH_HEADER: str(branch),
            wire.ROWS_HEADER: str(rows),
            wire.DIGEST_HEADER: digest,
            "Content-Type": wire.ARROW,
            "Content-Length": str(length),
        }
        with contextlib.closing(body()) as stream:
            answer = self._post("/prepare", stream, headers, transaction)
        refused = self._no_vote(answer, transaction, rows, digest)
        if refused is not None:
            raise ParticipantRefusedError(
                f"participant {self.name!r} {refused}",
                status=answer.status,
                transaction_id=str(transaction),
                participant=self.name,
            )
        return Vote.COMMIT

    def _no_vote(
        self, answer: Answer, transaction: TransactionId, rows: int, digest: str
    ) -> str | None:
        """Say why an answer is no vote for what was sent; None if it is one."""
        why = wire.refusal_of_prepare(answer.status, answer.content_type, answer.body)
        if why is not None:
            return f"votes abort ({answer.status}): {why}"
        item = self._read(answer, transaction, _PREPARED)
        if (item.get("rows"), item.get("digest")) != (rows, digest):
            return f"counted other rows than the {rows} sent, or another digest"
        if item.get("vote") != Vote.COMMIT:
            return f"prepared {rows} rows and does not vote commit"
        return None

    def commit(self, record: TransactionRecord) -> None:
        """Commit the branches chosen for this participant, and seal."""
        branches = [
            {"branch": str(r.branch), "rows": r.rows, "digest": r.digest}
            for r in record.chosen(self.name)
        ]
        self._control("/commit", record.id, _COMMITTED, record, branches=branches)

    def abort(self, record: TransactionRecord) -> None:
        """Abort the whole transaction there, and seal."""
        self._control("/abort", record.id, _ABORTED, record)

    def abort_branch(self, transaction: TransactionId, branch: BranchId) -> None:
        """Abort one branch, by the task that wrote it, before its receipt is out."""
        self._control("/abort", transaction, _ABORTED, None, branch=str(branch))

    def authorization(self) -> dict[str, str]:
        """Return the header that admits us; the token is read anew each time.

        Raises:
            ConfigurationError: there is none, or it is more than one word.
        """
        if not self.token:
            return {}
        what = f"token of participant {self.name!r}"
        return {"Authorization": f"Bearer {_one_word(self.token, what)}"}

    def _control(
        self,
        route: str,
        transaction: TransactionId,
        states: frozenset[str],
        record: TransactionRecord | None,
        **fields: Any,
    ) -> None:
        order = {"transaction_id": str(transaction), **fields}
        order["watermark"] = record.watermark if record else None
        body = json.dumps(order).encode()
        headers = {"Content-Type": wire.JSON}
        self._read(self._post(route, body, headers, transaction), transaction, states)

    def _why(self, error: Exception, route: str) -> str:
        if isinstance(error, urllib3.exceptions.NewConnectionError):
            return f"nothing listens at {self.url}"
        return (
            f"no answer to POST {route} within {self.timeout:g} s "
            f"({type(error).__name__}): it may or may not have happened"
        )

    def _read(
        self, answer: Answer, transaction: TransactionId, states: frozenset[str]
    ) -> Mapping[str, Any]:
        return wire.read_answer(
            answer.status,
            answer.content_type,
            answer.body,
            transaction_id=str(transaction),
            participant=self.name,
            states=states,
        )

    def _post(
        self,
        route: str,
        body: bytes | IO[bytes],
        headers: dict[str, str],
        transaction: TransactionId,
    ) -> Answer:
        headers[wire.VERSION_HEADER] = wire.VERSION
        headers["Accept"] = wire.JSON
        headers.update(self.authorization())
        target = _pool(self.url, self.timeout, os.getpid())
        about: dict[str, str | int | float | bool] = {
            "http.request.method": "POST",
            "tpc.participant": self.name,
            "tpc.transaction.id": str(transaction),
            "server.address": target.host,
            "server.port": target.port or 0,
        }
        with client_span(f"POST {route}", about) as span:
            headers.update(current_carrier())
            try:
                answer = _ask(
                    target, _path(self.url) + route, body, headers, self.timeout
                )
            except (urllib3.exceptions.HTTPError, OSError) as error:
                raise ParticipantUnavailableError(
                    f"participant {self.name!r}: {self._why(error, route)}",
                    transaction_id=str(transaction),
                    participant=self.name,
                ) from error
            span.set("http.response.status_code", answer.status)
        return answer


def _ask(
    pool: urllib3.HTTPConnectionPool,
    path: str,
    body: bytes | IO[bytes],
    headers: Mapping[str, str],
    timeout: float,
) -> Answer:
    response = pool.urlopen(
        "POST",
        path,
        body=body,
        headers=headers,
        retries=False,
        redirect=False,
        preload_content=False,
    )
    content = bytearray()
    until = time.monotonic() + timeout
    try:
        while part := response.read1(1 << 16):
            content += part
            if len(content) > wire.MAX_ANSWER_BYTES or time.monotonic() > until:
                raise urllib3.exceptions.ProtocolError("too long, or too slow")
        response.release_conn()
    finally:
        response.close()
    kind = response.headers.get("Content-Type", "")
    return Answer(response.status, kind, bytes(content))


@functools.cache
def _pool(url: str, timeout: float, _pid: int) -> urllib3.HTTPConnectionPool:
    # By process: a connection is not shared over a fork, and outlives a batch.
    return urllib3.connectionpool.connection_from_url(
        url,
        maxsize=8,
        block=False,
        timeout=urllib3.Timeout(connect=timeout, read=timeout),
        retries=False,
    )


def _one_word(reference: str, what: str) -> str:
    token = reveal(reference, what)
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigurationError(
            f"{what}: {reference} must hold one token, and no more"
        )
    return token


def _path(url: str) -> str:
    return urllib3.util.parse_url(url).path or ""
