"""What one participant lets us do, and how it is: asked without changing anything."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Final

import urllib3

from tracing_2pc.errors import ConfigurationError, ParticipantUnavailableError
from tracing_2pc.model import Identity
from tracing_2pc.transports import wire
from tracing_2pc.transports.connection import Answer, ask, path_of, pool_of, why_silent
from tracing_2pc.transports.http import HttpParticipant

_SAMPLE: Final = re.compile(r"(tpc_[a-z_]+) ([0-9.e+-]+)")
_MOST_SAMPLES: Final = 1000


@dataclasses.dataclass(frozen=True, slots=True)
class Probed:
    """One participant at one time.

    Args:
        participant: its configured name.
        url: where it was asked.
        unreachable: why it gave no answer; nothing below is known then.
        unready: what it says instead of being ready.
        refused: why our token was not taken, or could not be sent.
        sent: a token was sent; False where there is none that could be.
        role: job, operator or viewer; *anybody* where no token is asked for.
        skew: seconds that its clock is ahead of ours; None if it did not say.
        in_doubt: branches that are prepared there.
        missing: why there may be more of them.
        only: the one application that our token is bound to; None for all.
        gauges: its metrics without labels; none for a job's token.
        identity: which participant it is.
    """

    participant: str
    url: str
    unreachable: str | None = None
    unready: str | None = None
    refused: str | None = None
    sent: bool = True
    role: str | None = None
    skew: float | None = None
    in_doubt: int = 0
    missing: str | None = None
    only: str | None = None
    gauges: Mapping[str, float] = dataclasses.field(default_factory=dict)
    identity: Identity | None = None


def probe(participant: HttpParticipant) -> Probed:
    """Ask one participant how it is. Never raises; takes six timeouts at most.

    Its role is found by what is refused: the form of the one request that could change
    something is wrong on purpose, so that it is refused in any case.
    """
    found = Probed(participant.name, participant.url)
    try:
        unready = _unready(_send(participant, "GET", "/health/ready", {}))
    except (urllib3.exceptions.HTTPError, OSError) as error:
        name, url, token = participant.name, participant.url, participant.token
        request = wire.Request(name, url, token, "GET /health/ready")
        why = why_silent(error, request, participant.timeout)
        return dataclasses.replace(found, unreachable=why)
    found = dataclasses.replace(found, unready=unready)
    try:
        return _admitted(participant, found)
    except ConfigurationError as error:
        return dataclasses.replace(found, refused=str(error), sent=False)
    except ParticipantUnavailableError as error:
        if error.status in wire.NOT_ADMITTED:
            return dataclasses.replace(found, refused=str(error))
        return dataclasses.replace(found, unready=unready or str(error))
    except (urllib3.exceptions.HTTPError, OSError) as error:
        why = f"stopped answering ({type(error).__name__})"
        return dataclasses.replace(found, unreachable=why)


def misdirected(
    identities: Mapping[str, Identity], applications: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Say which participants' addresses lead to another one, and how that is known.

    Args:
        identities: who answered at the address of each.
        applications: those that go by the names that we use.
    """
    names: dict[str, str] = {}
    for name, one in identities.items():
        other = names.setdefault(one.journal, name)
        if other != name:
            yield name, f"the addresses of {other!r} and {name!r} lead to one service"
        for application, called in one.participants.items():
            if application in applications and called != name:
                why = f"the address of {name!r} leads to {called!r} of application "
                yield name, why + application


def _unready(answer: Answer) -> str | None:
    if answer.status == 200:
        return None
    why = wire.reason_of(answer.content_type, answer.body)
    return f"answered {answer.status} to /health/ready: {why}"


def _admitted(participant: HttpParticipant, found: Probed) -> Probed:
    anybody = _send(participant, "GET", "/transactions?limit=1", {}).status == 200
    token = participant.authorization()
    before = time.time()
    listing = participant.prepared()
    now = (before + time.time()) / 2
    identity = participant.identity()
    role, gauges = _role(participant, token)
    return dataclasses.replace(
        found,
        role="anybody" if anybody else role,
        skew=None if listing.now is None else listing.now - now,
        in_doubt=len(listing.branches),
        missing=listing.missing,
        only=listing.only,
        gauges=gauges,
        identity=identity,
    )


def _role(
    participant: HttpParticipant, token: Mapping[str, str]
) -> tuple[str, dict[str, float]]:
    metrics = _send(participant, "GET", "/metrics", token)
    if metrics.status != 200:
        return "job", {}
    refused = _send(participant, "POST", "/resolve", token, b"{}").status
    return ("viewer" if refused == 403 else "operator"), _gauges(metrics)


def _gauges(answer: Answer) -> dict[str, float]:
    if answer.status != 200:
        return {}
    lines = answer.body.decode("utf-8", "replace").splitlines()[:_MOST_SAMPLES]
    samples = (_SAMPLE.fullmatch(line) for line in lines)
    read = {found[1]: _number(found[2]) for found in samples if found}
    return {name: value for name, value in read.items() if math.isfinite(value)}


def _number(text: str) -> float:
    """Return a sample's value; not a number where it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _send(
    participant: HttpParticipant,
    method: str,
    route: str,
    token: Mapping[str, str],
    body: bytes | None = None,
) -> Answer:
    headers = {wire.VERSION_HEADER: wire.VERSION, **token}
    if body is not None:
        headers["Content-Type"] = wire.JSON
    pool = pool_of(participant.url, participant.timeout, os.getpid())
    path = path_of(participant.url) + route
    return ask(pool, method, path, body, headers, participant.timeout)
