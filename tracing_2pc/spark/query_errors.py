"""The end of a callback that raises: one line in the log, and a short exception.

Spark prints an exception of a callback three times, each with its own stack, Python's
traceback as text and all causes: the reason would be one line of hundreds.
"""

from __future__ import annotations

import atexit
import logging
import re
from typing import Final

from tracing_2pc.core.errors import (
    AbortedError,
    InDoubtError,
    TwoPhaseError,
)
from tracing_2pc.protocol.decisions import describe_cause

logger = logging.getLogger(__name__)

_ends: Final[dict[str, str]] = {}
"""The end of the last query of each application, in this process."""

_LONGEST: Final = 500
_TRACEBACK: Final = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)*")
_AWAITED: Final = re.compile(
    r"Exception thrown in awaitResult.*?^Caused by: (.*)", re.DOTALL | re.MULTILINE
)
"""Spark 3.5 tells of a collected job only that it waited for it; the cause follows."""
_TASK: Final = re.compile(r"Lost task (\d+)\.\d+ in stage")
_GONE: Final = re.compile(r"does not exist in the JVM|from Java side is empty")
_MISSING: Final = re.compile(r"ModuleNotFoundError: No module named '[\w.]+'$")
_SHIP_IT: Final = (
    "{} in the Python of the executors. Install it there (PYSPARK_PYTHON says which "
    "Python that is), or ship an environment that has it with spark.archives"
)
_OURS: Final = re.compile(r"^tracing_2pc\.core\.errors\.\w+: ")


class StoppedError(Exception):
    """The query was stopped. Spark knows by these words that it was no failure."""

    def __init__(self) -> None:
        super().__init__(
            "py4j.protocol.Py4JJavaError: An error occurred while calling the batch.\n"
            ": java.lang.InterruptedException: the query was stopped"
        )


def reason_of(error: BaseException) -> str:
    """Return an error's reason in one line, without Java's stacks.

    Of a Spark job that is the last error of the Python in its task, else Spark's own
    first line. A module that a task cannot import is missing in the Python of the
    executors. Once the JVM has ended, Py4J's errors do not mention that.
    """
    if type(error).__module__.startswith("py4j") and _GONE.search(str(error)):
        return "Spark's JVM has ended; its own output says why (out of memory?)"
    text = str(error).partition("\nJVM stacktrace")[0]
    if awaited := _AWAITED.search(text):
        text = awaited[1]
    *_, last = _TRACEBACK.split(text)
    text = last.partition("\n\tat ")[0].strip().partition("\n\n")[0]
    line = " ".join(text.split())
    if _MISSING.match(line):  # the driver's own has no class in its text
        return _SHIP_IT.format(line)
    return _OURS.sub("", line)[:_LONGEST] or type(error).__name__


def describe_failure(error: BaseException) -> str:
    """Return the record of an abort: the task, if Spark names it, and the reason."""
    if not type(error).__module__.startswith(("py4j", "pyspark")):
        return describe_cause(error)
    task = f"task {match[1]}: " if (match := _TASK.search(str(error))) else ""
    return f"{task}{reason_of(error)}"


def describe_end(error: Exception) -> str:
    """Return the message of the error that ended the query, or another's reason."""
    return str(error) if isinstance(error, TwoPhaseError) else reason_of(error)


def forget_end(application: str) -> None:
    """Forget the end of an earlier query of the application: it runs again."""
    _ends.pop(application, None)


def report_end(
    error: Exception, application: str, number: int, *, stopping: bool
) -> Exception:
    """Log the error that ended the query; return one to raise instead, without a cause.

    If the program ends with that, it is logged again, below Spark's own output.
    """
    batch = f"batch {number} of {application}"
    reason = describe_end(error)
    logger.debug("%s ended: in full", batch, exc_info=error)
    if stopping and not _is_news(error):
        level = logging.WARNING if isinstance(error, InDoubtError) else logging.INFO
        logger.log(level, "stopped in %s: %s", batch, reason)
        return StoppedError()
    if not _ends:
        atexit.unregister(_repeat)
        atexit.register(_repeat)
    _ends[application] = f"{batch} ended the query: {reason}"
    fields = {"tpc_transaction_id": getattr(error, "transaction_id", None) or ""}
    logger.error("%s", _ends[application], extra=fields)
    return error


def _repeat() -> None:
    for end in _ends.values():
        logger.error("%s", end)


def _is_news(error: Exception) -> bool:
    """Whether it would have been raised without `stop()`, too."""
    return isinstance(error, TwoPhaseError) and not isinstance(
        error, AbortedError | InDoubtError
    )
