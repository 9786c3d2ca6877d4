"""What a callback knows of its calls, and what is said of an error that ends it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support.texts import texts

from tracing_2pc.core.errors import ContractError
from tracing_2pc.spark.calls import called_once
from tracing_2pc.spark.context import StreamContext
from tracing_2pc.spark.query_errors import describe_failure, reason_of


def call(run: str, batch: int, *, application: str = "orders", log: str = "a") -> None:
    with called_once(application, log, run, batch):
        pass


def test_a_batch_is_called_once_in_a_run():
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


def test_a_call_that_raised_was_none():
    """Nothing of its batch need be committed: the callback may try it again."""
    with pytest.raises(KeyError), called_once("orders", "a", "raised", 0):
        raise KeyError
    call("raised", 0)
    with pytest.raises(ContractError):
        call("raised", 0)


def test_a_call_during_another_one_is_refused():
    """Two threads of one callback would write two halves of a batch, as one attempt."""
    with called_once("orders", "a", "at once", 0), pytest.raises(ContractError):
        call("at once", 0)
    with pytest.raises(ContractError):
        call("at once", 0)


TEXTS = texts("unit")

JAVA = "\n\tat org.apache.spark.Task.run(Task.scala:1)\n\tat java.lang.Thread.run\n"
TASK = 'Traceback (most recent call last):\n  File "job.py", line 3, in f\n    g()\n'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("one line", "one line"),
        ("", "RuntimeError"),
        (f"Job aborted: Lost task\n{TASK}ValueError: no\n{JAVA}", "ValueError: no"),
        (
            f"{TASK}KeyError: 1\n\nThe above exception was the direct cause of the "
            f"following exception:\n\n{TASK}ValueError: two\nlines\n\n{JAVA}",
            "ValueError: two lines",
        ),
        (f"{TASK}tracing_2pc.core.errors.AbortedError: late\n", "late"),
        (f"[USER_RAISED] poison\n\nJVM stacktrace:\nx{JAVA}", "[USER_RAISED] poison"),
        (f"o1.\n: java.lang.Error: x{JAVA}more", "o1. : java.lang.Error: x"),
    ],
)  # fmt: skip
def test_the_reason_is_one_line(text, reason):
    """The last error of the task's Python, or Spark's own first words: no stack."""
    assert reason_of(RuntimeError(text)) == reason


def test_what_executors_lack_is_told_with_what_to_do():
    """A task's module that is missing is missing there; the driver's own is not."""
    module = "No module named 'tracing_2pc'"
    raised = f"Job aborted: Lost task\n{TASK}ModuleNotFoundError: {module}\n{JAVA}"
    there = TEXTS["executors lack a module"].format(module=module)
    assert reason_of(RuntimeError(raised)).startswith(there)
    assert reason_of(ModuleNotFoundError(module)) == module


@pytest.mark.parametrize(
    "text",
    ["py4j.reflection does not exist in the JVM", "Answer from Java side is empty"],
)
def test_the_end_of_the_jvm_is_said(text):
    """Py4J's own words tell nobody; what a program says itself is left alone."""
    from py4j.protocol import Py4JError

    assert reason_of(Py4JError(text)).startswith(TEXTS["the JVM has ended"])
    lost = f"Job aborted: Lost task 3.1 in stage 0.0\n{TASK}ValueError: no\n{JAVA}"
    assert describe_failure(Py4JError(lost)) == "task 3: ValueError: no"
    assert describe_failure(ValueError("no")) == "ValueError: no"
    assert reason_of(RuntimeError(text)) == text


class Stopped:
    """A SparkContext after `stop()`: it has no JVM to ask."""

    def getLocalProperty(self, key: str) -> str:  # noqa: N802 - Spark's name
        raise AttributeError(key)


def test_a_batch_of_a_new_session_is_of_another_run():
    """A callback goes on after `spark.stop()`; the stopped session is not asked."""
    df: Any = SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=object()))
    assert not StreamContext(Stopped(), "run", "query").has(df)
