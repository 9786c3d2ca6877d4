"""A job: of sink, name and settings it makes a coordinator, without pyspark."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from functools import partial

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.log_reader import OperatorLog
from tracing_2pc.core.model import Facts, check_application, writes_of
from tracing_2pc.core.ports import SystemClock, Tracing
from tracing_2pc.core.settings import Settings
from tracing_2pc.protocol.coordinator import Coordinator
from tracing_2pc.protocol.delivery import Delivery
from tracing_2pc.protocol.retry import RetryPolicy
from tracing_2pc.sinks.base import (
    Sink,
    check_job,
    check_leftovers,
    finish_recovery,
    participants_of,
)
from tracing_2pc.sinks.composite import CompositeSink, as_single_sink
from tracing_2pc.sinks.participant_sink import (
    ParticipantSink,
    TracedParticipant,
    journals_of,
)
from tracing_2pc.sinks.rejecting import rejecting


@dataclasses.dataclass(frozen=True)
class Job:
    """Plain data: Spark pickles it into every process that takes part."""

    sink: Sink
    application: str
    settings: Settings
    replaces: Collection[str] = ()
    links: str | None = None  # the column with what the rows came with

    @classmethod
    def of(
        cls,
        sink: Sink | Sequence[Sink],
        application: str,
        settings: Settings,
        replaces: Collection[str] = (),
        links: str | None = None,
    ) -> Job:
        """Check settings without a participant; `ConfigurationError` has the cure."""
        try:
            check_application(application)
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
        if not settings.log:
            raise ConfigurationError(
                "no decision log: give log='sqlite:///state/decisions.db', or set "
                "TPC_LOG"
            )
        single = as_single_sink(sink)
        if settings.rejects:
            single = rejecting(single, settings.rejects, settings.rejects_at_most)
        return cls(single, application, settings, replaces, links)

    def check(self) -> None:
        """Check the token and the addresses, and warn of branches a sink cannot find.

        A sink of the user's own is asked by its `check_job`, if it has that.

        Raises:
            ConfigurationError: as `ParticipantSink.check`.
            ContractError: as `check_leftovers`.
        """
        if isinstance(self.sink, ParticipantSink | CompositeSink):
            self.sink.check(self.application)
        check_leftovers(self.sink)
        check_job(self.sink, self.application)

    @property
    def writes(self) -> str:
        """The query on record where a caller counts the batches: see `writes_of`."""
        return writes_of(self.application)

    def retry(self, stopping: Callable[[], bool]) -> RetryPolicy:
        """Return the waits of this job between tries."""
        settings = self.settings
        waits = settings.backoff_base, settings.backoff_cap, settings.inline_tries
        return RetryPolicy(SystemClock(), *waits, stopping)

    def coordinator(
        self,
        log: OperatorLog,
        tracing: Tracing,
        stopping: Callable[[], bool],
        *,
        stream: bool = False,
        facts: Facts | None = None,
    ) -> Coordinator:
        """Return this process's coordinator of this job.

        `stream` and `facts`: as `Coordinator`.
        """
        participants = participants_of(self.sink)
        retry = self.retry(stopping)
        # Only the job itself can tell a decision to a sink that is no service.
        services = {
            name: participant.inner
            for name, participant in participants.items()
            if isinstance(participant, TracedParticipant)
        }
        return Coordinator(
            self.application,
            tuple(participants),
            log,
            Delivery(log, participants, tracing=tracing, retry=retry),
            tracing,
            retry.clock,
            self.settings,
            retry,
            frozenset(participants.keys() - services.keys()),
            frozenset(self.replaces),
            partial(finish_recovery, participants, log, self.application),
            stream,
            facts=facts or {},
            journals=partial(journals_of, services),
            rejects=self.settings.rejects,
            rejects_at_most=self.settings.rejects_at_most,
        )
