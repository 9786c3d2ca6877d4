"""What is said of an error that ends a query."""

from __future__ import annotations

import pytest
from support.texts import texts

from tracing_2pc.spark.query_errors import reason_of

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
def test_the_reason_is_one_line(text: str, reason: str) -> None:
    """The last error of the task's Python, or Spark's own first words: no stack."""
    assert reason_of(RuntimeError(text)) == reason


def test_what_executors_lack_is_told_with_what_to_do() -> None:
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
def test_the_end_of_the_jvm_is_said(text: str) -> None:
    """Py4J's own words tell nobody; what a program says itself is left alone."""
    from py4j.protocol import Py4JError

    assert reason_of(Py4JError(text)).startswith(TEXTS["the JVM has ended"])
    assert reason_of(RuntimeError(text)) == text
