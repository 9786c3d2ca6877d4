"""A session of PostgreSQL that tells a server at work from one that is silent.

A statement may take as long as it takes, and no time limit tells that from a server
that is frozen, or from an answer that is lost. So a session that has waited for a while
asks through a second one: whether the server answers at all, and whether it waits for
us.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from typing import Any, Final

import psycopg

from tracing_2pc.store.engines.silence import longest_silence

_AWAITED: Final = "SELECT wait_event FROM pg_stat_activity WHERE pid = %s"


class Session(psycopg.Connection[Any]):
    """A connection that obeys `answering_within`."""

    is_pooled: bool | None = None
    """Whether a pooler has made its process's id up; None until that is known."""

    _arguments: tuple[tuple[Any, ...], dict[str, Any]]

    @classmethod
    def connect(cls, *args: Any, **options: Any) -> Session:
        """Connect; no attempt takes longer than the limit."""
        if (limit := longest_silence()) is not None:
            given = float(options.get("connect_timeout", 0)) or math.inf
            options["connect_timeout"] = min(given, math.ceil(limit))
        session = super().connect(*args, **options)
        session._arguments = args, options
        return session

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **how: Any) -> Any:
        """Wait as psycopg does, and watch the server where there is a limit."""
        if (limit := longest_silence()) is not None:
            gen = self._watched(gen, limit)
        return super().wait(gen, *args, **how)

    def _watched(
        self, gen: Generator[Any, Any, Any], limit: float
    ) -> Generator[Any, Any, Any]:
        quiet_since, was_awaited = time.monotonic(), False
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if ready:
                    quiet_since, was_awaited = time.monotonic(), False
                elif time.monotonic() - quiet_since > limit:
                    is_awaited = self._is_awaited(limit)
                    # Twice: the first time its answer may be under way.
                    if is_awaited and was_awaited:
                        self._end("what was asked, or its answer, was lost")
                    quiet_since, was_awaited = time.monotonic(), is_awaited
                wanted = gen.send(ready)
        except StopIteration as end:
            return end.value

    def _is_awaited(self, limit: float) -> bool:
        """Ask the server whether it waits for this session's client."""
        args, options = self._arguments
        here = {"host": self.info.host, "port": self.info.port, "autocommit": True}
        try:
            with _Question.connect(*args, **{**options, **here}) as question:
                row = question.execute(_AWAITED, [self.info.backend_pid]).fetchone()
        except (psycopg.errors.ConnectionTimeout, _SilentError):
            self._end(f"the server says nothing for {limit:g} s")
        except psycopg.Error:
            return False  # an answer, or a server that is gone: the session will end
        if self.is_pooled is None:
            return True  # nothing that it is asked until then takes long
        return not self.is_pooled and (row is None or row[0] == "ClientRead")

    def _end(self, message: str) -> None:
        self.close()
        raise psycopg.OperationalError(message)


class _SilentError(psycopg.OperationalError):
    pass


class _Question(Session):
    """The second session: itself it waits no longer than that."""

    def _is_awaited(self, limit: float) -> bool:
        self.close()
        raise _SilentError
