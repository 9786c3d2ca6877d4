"""Several sinks as one: a job's writes to all of them are one transaction."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.model import BranchContext, Receipt
from tracing_2pc.core.ports import DistributedSink, Participant
from tracing_2pc.core.remote_participant import RemoteParticipant
from tracing_2pc.sinks.base import Branch, Sink, asking, gather, participants_of
from tracing_2pc.sinks.participant_sink import (
    ParticipantSink,
    TracedParticipant,
    check_addresses,
    check_urls,
)


class CompositeSink:
    """Write each partition to several sinks, of any kinds, in one transaction.

    A partition is computed once, and its rows are given to each member in turn. The
    members prepare in their order. If one of them raises, that is the branch's vote to
    abort, and each member that has begun the branch is told to drop it.

    The decision is delivered to each participant of each member by itself. A
    hand-written member is given its own handles only. A member that raises then is
    called again, and does not hold up the others.

    Args:
        members: at least one sink. Names of participants must be unique: a hand-written
            sink is named by its attribute `name`, or else its class.

    Raises:
        ConfigurationError: no member; two participants with one name or one URL.
        ContractError: a member lacks a phase.
    """

    def __init__(self, members: Sequence[Sink]) -> None:
        if not members:
            raise ConfigurationError("give at least one sink")
        self.members = tuple(members)
        self._check_names()
        check_urls(self._services())

    def __repr__(self) -> str:
        return f"CompositeSink({list(self.members)})"

    def _check_names(self) -> None:
        kinds: dict[str, str] = {}
        for member in self.members:
            kind, names = type(member).__name__, participants_of(member)
            if not names:
                raise ConfigurationError(
                    f"{kind} has no participant: name at least one"
                )
            for name in names:
                if name in kinds:
                    raise ConfigurationError(
                        f"two participants are named {name!r}, of {kinds[name]} and "
                        f"{kind}: give each sink a name of its own, as its attribute "
                        "`name` or the key of its URL"
                    )
                kinds[name] = kind

    def check(self, application: str) -> None:
        """Check all services of all members together, where the job is started.

        Raises:
            ConfigurationError: as `ParticipantSink.check`.
        """
        check_addresses(self._services(), application)

    def _services(self) -> dict[str, RemoteParticipant]:
        return {
            name: participant.inner
            for name, participant in self.participants.items()
            if isinstance(participant, TracedParticipant)
        }

    @property
    def participants(self) -> Mapping[str, Participant]:
        """Those that a decision is delivered to, of all members, by name."""
        return {
            name: participant
            for member in self.members
            for name, participant in participants_of(member).items()
        }

    def route(self, name: str) -> Sink:
        """Return the sink of one participant only.

        Raises:
            ConfigurationError: no participant of that name, or only together with
                others.
        """
        for member in self.members:
            if name not in participants_of(member):
                continue
            if isinstance(member, ParticipantSink | CompositeSink):
                return member.route(name)
            if len(participants_of(member)) == 1:
                return member
            raise ConfigurationError(
                f"{type(member).__name__} writes to {name!r} and others together: it "
                "cannot have routes"
            )
        known = ", ".join(sorted(self.participants))
        raise ConfigurationError(f"no participant {name!r} in the sinks: {known}")

    def begin(self, context: BranchContext) -> list[Branch]:
        """Open the branch at each member; opened ones are aborted if one raises."""
        branches: list[Branch] = []
        try:
            for member in self.members:
                names = tuple(participants_of(member))
                own = dataclasses.replace(context, participants=names)
                branches.append(Branch(member, own))
        except BaseException:
            self.abort(branches)
            raise
        return branches

    def invoke_batch(self, handle: list[Branch], batch: Any) -> None:
        """Give an Arrow batch to each member."""
        for branch in handle:
            branch.write(batch)

    def pre_commit(self, handle: list[Branch]) -> list[Receipt]:
        """Make the branch durable at each member; return the vote of each participant.

        Raises:
            RejectedRowsError: with the rows that members reject.
            Exception: of the first member that could not. The caller aborts then.
        """
        votes = gather(map(asking(Branch.prepare), handle), handle[0].context)
        return [*itertools.chain.from_iterable(votes)]

    def abort(self, handle: list[Branch]) -> None:
        """Drop the branch at each member that has begun it, even if another raises."""
        for branch in handle:
            branch.abort()


def as_single_sink(sinks: Sink | Sequence[Sink]) -> Sink:
    """Return a sink as it is, and several as one `CompositeSink`.

    Those that only send branches become one: it encodes a branch once for all of them,
    and asks all at once.
    """
    if isinstance(sinks, DistributedSink) or not isinstance(sinks, Sequence):
        return sinks
    if len(sinks) == 1:
        return sinks[0]
    whole = CompositeSink(sinks)  # which checks their names
    plain = [s for s in sinks if isinstance(s, ParticipantSink) and s.is_plain]
    if len(plain) < 2:
        return whole
    joined, *others = (
        ParticipantSink.joined(plain),
        *(s for s in sinks if s not in plain),
    )
    return CompositeSink([joined, *others]) if others else joined
