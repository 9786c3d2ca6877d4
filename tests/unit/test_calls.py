"""Which call of a callback is the only one for its batch."""

from __future__ import annotations

import pytest

from tracing_2pc.core.errors import ContractError
from tracing_2pc.spark.calls import called_once


def call(run: str, batch: int, *, application: str = "orders", log: str = "a") -> None:
    with called_once(application, log, run, batch):
        pass


def test_a_batch_is_called_once_in_a_run() -> None:
    """The next batch, the next run, another application and another log are others."""
    call("once", 0)
    with pytest.raises(ContractError):
        call("once", 0)
    call("once", 1)
    call("once", 1, application="others")
    call("once", 1, log="b")
    with pytest.raises(ContractError):
        call("once", 1)
    call("after a restart", 1)


def test_a_call_that_raised_was_none() -> None:
    """Nothing of its batch need be committed: the callback may try it again."""
    with pytest.raises(KeyError), called_once("orders", "a", "raised", 0):
        raise KeyError
    call("raised", 0)
    with pytest.raises(ContractError):
        call("raised", 0)


def test_a_call_during_another_one_is_refused() -> None:
    """Two threads of one callback would write two halves of a batch, as one attempt."""
    with called_once("orders", "a", "at once", 0), pytest.raises(ContractError):
        call("at once", 0)
    with pytest.raises(ContractError):
        call("at once", 0)
