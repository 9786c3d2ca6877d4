"""Waiting for what runs elsewhere, until nobody waits for the vote any more."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Final

from tracing_2pc.core.errors import AbortedError, ConfigurationError
from tracing_2pc.launch.cluster import Cluster, Object, UnreachableError

TRANSACTION: Final = "tracing-2pc/transaction"
"""The label by which an object says whose it is."""

WORD: Final = "tracing-2pc/transactionId"
"""The label with a user's own word for a launch; it means nothing to us."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a launch makes what an abort has to find: its record says it."""

    namespace: str
    repository: str = ""  # empty where nothing is built
    by_task: bool = False  # by a TaskRun
    is_past: bool = False  # a later launch is on record: this one has ended everywhere

    def __str__(self) -> str:
        """Write it as `of` reads it."""
        return f"{self.namespace} {'task' if self.by_task else '-'} {self.repository}"

    @classmethod
    def of(cls, text: str) -> Place:
        """Read what `str` has written."""
        namespace, how, repository = text.split(" ")
        return cls(namespace, repository, how == "task")


PlaceOf = Callable[[str], Place]
"""Says of a transaction where it was launched, whatever a file says now."""

_FIRST: Final = 0.1
_LONGEST: Final = 2.0


def wait_for(is_over: Callable[[], bool], stopping: threading.Event, what: str) -> None:
    """Ask until it is over: soon at first, then every two seconds.

    An API server that does not answer is asked again.

    Raises:
        AbortedError: `stopping` was set: the launch has run out of time.
    """
    pause = _FIRST
    while True:
        try:
            if is_over():
                return
            why = ""
        except UnreachableError as error:
            why = f": {error}"
        if stopping.wait(pause):
            raise AbortedError(
                f"{what} was not over within the launch's `timeout`{why}"
            )
        pause = min(pause * 1.5, _LONGEST)


def create(cluster: Cluster, item: Object, stopping: threading.Event) -> None:
    """Create an object of a transaction; one that is there already is adopted.

    Raises:
        AbortedError: as `wait_for`.
        ConfigurationError: one of this name is there, and it is somebody else's.
        ClusterError: the API server refuses it.
    """
    meta, kind = item["metadata"], item["kind"]
    name = f"{kind} {meta['name']}"

    def is_there() -> bool:
        if cluster.create(item):
            return True
        found = cluster.get(kind, meta["namespace"], meta["name"])
        if found is not None and not is_same(found, item):
            raise ConfigurationError(
                f"{name} is there already, and it is not this launch's: delete it, or "
                "name the job otherwise"
            )
        return found is not None and "deletionTimestamp" not in found["metadata"]

    wait_for(is_there, stopping, f"the creation of {name}")


def is_same(found: Object, item: Object) -> bool:
    """Say whether an object that was found is of the same transaction."""
    labels = [one["metadata"].get("labels") or {} for one in (found, item)]
    mine, other = (one.get(TRANSACTION) for one in labels)
    return mine == other
