"""One call for each batch: the rows of a second one would be taken for a replay."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from tracing_2pc.core.errors import ContractError


class _Call(NamedTuple):
    application: str
    log: str
    run: str
    batch: int


_calls: Final[dict[_Call, object]] = {}
"""The newest of each application in each log; each value is the caller's own."""


@contextlib.contextmanager
def called_once(application: str, log: str, run: str, batch: int) -> Iterator[None]:
    """Refuse a second call for a batch in one run of this process.

    A call that raises does not count. Spark itself calls a batch once in a run; a batch
    that it replays after a restart belongs to the next run.

    Raises:
        ContractError: the batch was called before, or is being called elsewhere.
    """
    call, mine = _Call(application, log, run, batch), object()
    if _calls.setdefault(call, mine) is not mine:  # one step: threads may call at once
        raise ContractError(
            f"batch {batch} of {application} was written by a call before this one in "
            "the same run, and a batch is one transaction: nothing of this call was "
            "written. Call the callback once for each batch: give routes if services "
            "get different rows, union the DataFrames if they get the same, or start a "
            "second query with an application of its own"
        )
    for other in tuple(_calls):
        if other != call and other[:2] == call[:2]:
            _calls.pop(other, None)
    try:
        yield
    except BaseException:
        _calls.pop(call, None)
        raise
