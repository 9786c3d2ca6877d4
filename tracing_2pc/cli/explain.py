"""`tracing-2pc explain`: one screen, as a colleague would say it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Final

from tracing_2pc.cli.looking import code_of, looked, nobody_knows
from tracing_2pc.cli.terminal import by, headed, paint, prose, safe, say, tell
from tracing_2pc.links import links_of
from tracing_2pc.model import DeliveryRecord
from tracing_2pc.operations.actions import Action, busy
from tracing_2pc.operations.said import Said
from tracing_2pc.operations.view import View
from tracing_2pc.protocol.diagnosis import GRAVE, count, lasting
from tracing_2pc.states import Decision, Severity, TransactionState

_SAYING = 5
"""Participants that are told of; more are counted."""

_LIST: Final = "`tracing-2pc ls` lists those that it has."


def run(options: argparse.Namespace) -> int:
    """Print what is wrong with a transaction, what comes next, and what is safe."""
    view, settings = looked(options)
    links = links_of(settings.links, view.transaction, view.trace)
    if options.json:
        said = view.to_json()
        parts = (
            "transaction",
            "state",
            "reason",
            "diagnoses",
            "left_alone",
            "held_back",
            "next",
            "actions",
        )
        about = {name: said[name] for name in parts}
        tell(options, {**about, "summary": summary(view), "links": links}, "")
    else:
        say(lines(view, links))
    return code_of(view)


def lines(view: View, links: Mapping[str, str]) -> Iterator[str]:
    """Return it in sentences."""
    yield from prose(summary(view))
    yield from headed("What is wrong", _wrong(view))
    yield from headed("What each side says", _said(view))
    if view.state is not None or _held(view):
        yield from headed("What comes next by itself", _next(view))
        yield from headed("What you can do", _actions(view))
    yield from headed("See it", (f"  {safe(n)}  {safe(u)}" for n, u in links.items()))


def summary(view: View) -> str:
    """Say in a sentence or two how it stands."""
    id_, waiting = view.transaction, _waiting(view)
    if view.state is None:
        return _without_record(view)
    if view.state is TransactionState.ACTIVE:
        age = lasting(view.at - (view.started or view.at))
        return f"{id_} is being written: begun {age} ago, and not decided."
    if view.state is TransactionState.QUARANTINED:
        reason = safe(view.reason or "no reason on record", 200)
        return (
            f"{id_} is decided {view.decision} and quarantined: somebody's answer "
            f"contradicts the decision ({reason}). Work "
            f"on it has stopped, and {id_.application} begins no batch until a person "
            "has looked."
        )
    if view.state is TransactionState.CONCLUDED:
        return f"{id_} was decided {view.decision}, and closed by a person as it was."
    if view.finished is not None and view.untold:
        names = " and ".join(one.participant for one in view.untold)
        return f"{id_} is {view.state}, and {names} was not told all of it."
    if view.finished is not None:
        return f"{id_} is {view.state}: every participant has acknowledged."
    broken = {one.diagnosis for one in view.diagnoses} & GRAVE
    lost = "" if broken else "; nothing is lost"
    return (
        f"{id_} is decided {view.decision} and not finished: {waiting} not "
        f"acknowledged yet. The decision is durable{lost}."
    )


def _waiting(view: View) -> str:
    names = [one.participant for one in view.deliveries if one.pending]
    return f"{' and '.join(names) or 'nobody'} {'have' if len(names) > 1 else 'has'}"


def _without_record(view: View) -> str:
    id_ = view.transaction
    if nobody_knows(view):
        known = "" if view.known else f", and does not know {id_.application} at all"
        return f"Nobody knows {id_}: this log has no record of it{known}. {_LIST}"
    if view.forgotten:
        return (
            f"{id_} is forgotten: it was finished, and its record dropped (watermark "
            f"{view.watermark})."
        )
    return f"This log has no record of {id_}. {_LIST}"


def _held(view: View) -> bool:
    return any(one.oldest is not None for one in view.participants)


def _wrong(view: View) -> Iterator[str]:
    for one in view.diagnoses:
        critical = one.severity is Severity.CRITICAL
        for line in prose(f"{one.diagnosis}: {one.why}.", "  "):
            yield paint(line, "red" if critical else "yellow")
    for told in view.untold:
        for line in prose(f"not told: {told.untold}.", "  "):
            yield paint(line, "yellow")
    if view.diagnoses or view.untold or nobody_knows(view):
        return
    if view.state is None and not _held(view):
        yield "  Nothing, as far as anybody could be asked."
        return
    if view.state is TransactionState.QUARANTINED:
        yield from prose("The reason above; what the sides say now agrees.", "  ")
        return
    if view.held_back:
        for line in prose(f"{view.held_back}.", "  "):
            yield paint(line, "yellow")
        for why in view.left_alone[-1:]:
            yield from prose(f"Not called stuck yet: {why}.", "  ")
        return
    why = view.left_alone[0] if view.left_alone else ""
    yield from prose(f"Nothing{f' yet: {why}' if why else ''}.", "  ")


def _said(view: View) -> Iterator[str]:
    if not nobody_knows(view):
        yield from _aligned("the log", _log(view), view)
    told = {one.participant: one for one in view.deliveries if view.decision}
    for one in view.participants[:_SAYING]:
        heard = _heard(told.get(one.participant), view.at)
        yield from _aligned(one.participant, f"{_words(one)}{heard}.", view)
    if (more := len(view.participants) - _SAYING) > 0:
        yield f"  … and {more} more; `tracing-2pc show` has all"


def _heard(told: DeliveryRecord | None, now: float) -> str:
    """Say what the log has of one participant; what it answered stands elsewhere."""
    if told is None:
        return ""
    if told.untold is not None:
        return "; it was not told all of it"
    if told.acknowledged is not None:
        return f"; it acknowledged {lasting(now - told.acknowledged)} ago"
    if told.given_up is not None:
        return f"; it was given up {lasting(now - told.given_up)} ago"
    tried = f" {count(told.retries, 'time', 'times')}" if told.retries else " yet"
    return f"; {'told in vain' if told.retries else 'it has not been told'}{tried}"


def _aligned(who: str, text: str, view: View) -> Iterator[str]:
    names = [one.participant for one in view.participants[:_SAYING]]
    indent = " " * (min(20, max(map(len, ["the log", *names]))) + 4)
    yield from prose(text, indent, f"  {safe(who, 20)}")


def _log(view: View) -> str:
    if view.state is None:
        return "no record."
    if view.decided is None:
        return f"{view.state}; not decided."
    rows = f"; {count(view.rows, 'row')}" if view.decision is Decision.COMMIT else ""
    ago = lasting(view.at - view.decided)
    return f"{view.state}; decided {view.decision} {ago} ago{rows}."


def _words(one: Said) -> str:
    if one.own_sink:
        return "a sink of the job's own, which only the job can ask"
    if one.state is None:
        return f"cannot be read: {by(one.participant, one.error)}"
    hand = ", resolved there by hand" if one.resolved_by_hand else ""
    if one.oldest is not None:
        since = lasting(one.oldest)
        return f"holds it prepared for {since} and keeps busy {busy(one.holds)}{hand}"
    rows = f", {count(one.rows, 'row')}" if one.rows else ""
    return f"{one.state}{rows}{hand}"


def _next(view: View) -> Iterator[str]:
    for step in view.next:
        due = ""
        if step.at is not None:
            left = step.at - view.at
            due = f"in {lasting(left)}: " if left > 0 else "due: "
        yield from prose(f"{due}{step.what}.", "    ", "  - ")


def _actions(view: View) -> Iterator[str]:
    if not view.actions:
        yield "  Nothing, and nothing is needed."
    if view.silent:
        names = " and ".join(view.silent)
        first = f"first: see to it that {names} can be read: until then no decision"
        yield from prose(f"{first} arrives there.", "  ")
    for action in view.actions:
        yield from described(action)


def described(action: Action) -> Iterator[str]:
    """Return a command, what it does, and what it costs."""
    word, colour = ("safe", "green") if action.safe else ("FORCED", "red")
    yield paint(f"  {word}: {safe(action.command)}", colour)
    yield from prose(f"{action.effect}.", "    ")
    for cost in action.cost:
        yield from prose(f"costs: {cost}.", "      ", "    - ")
