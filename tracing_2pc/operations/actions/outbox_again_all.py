"""Send again all that one partner refused: after it was mended, or its key was."""

from __future__ import annotations

from typing import Any, Final

from tracing_2pc.core.errors import ParticipantUnavailableError, TwoPhaseError
from tracing_2pc.core.log_reader import MOST
from tracing_2pc.inspection.actions import Advice
from tracing_2pc.inspection.wording import format_count
from tracing_2pc.operations.actions.action import (
    Act,
    Action,
    Argument,
    Done,
    Given,
    Preview,
    Reach,
    Reason,
    application_given,
    of_application,
)


def prepare(reach: Reach, given: Given) -> Act:
    """List what is refused there now, the oldest `MOST` of it."""
    from tracing_2pc.inspection.participants import list_refused
    from tracing_2pc.operations.acts import act_about_request
    from tracing_2pc.operations.wiring import participant_named

    name, settings = given["participant"], reach.settings
    at = {name: participant_named(name, reach.participants)}
    with reach.asking(at):
        refused = list_refused(at, given.get("application"), limit=MOST)
    if why := refused.unreadable.get(name):
        raise ParticipantUnavailableError(why, participant=name)
    listing = refused.listings.get(name)
    requests = listing.requests if listing else ()
    found = [request for request in requests if request.trouble is None]
    count = format_count(len(found), "request")

    def run(who: str, reason: str) -> list[Done]:
        done: list[dict[str, Any]] = []
        for request in found:
            act = act_about_request("again", request.key, at, request, settings)
            try:
                done.append(act.run(who, reason).item)
            except TwoPhaseError as error:
                text = f"of {count} at {name}, {len(done)} wait to be sent again"
                return [Done(f"{text}: {error}", {"requests": done}, well=False)]
        text = f"{count} at {name} wait to be sent again"
        return [Done(text, {"requests": done})]

    effect = (
        "puts each back into its queue with the same idempotency key, one by one and "
        "signed; what was sent meanwhile has overtaken it. It stops at the first that "
        "fails"
    )
    preview = Preview(
        Advice(AGAIN_ALL.command(given), safe=True, effect=effect),
        facts=(("Participant", name), ("Refused there", count)),
        gone="" if found else f"nothing that can be sent again is refused at {name}",
    )
    return Act(given, "Send all again", name, "its name", lambda: preview, run)


AGAIN_ALL: Final = Action(
    "outbox again-all",
    "put all that a participant's partner refused back into its queue",
    (
        Argument("participant", "whose outbox", required=True, metavar="NAME"),
        of_application("only of this one", required=False),
    ),
    prepare,
    title="Send all again that its partner refused",
    place="participant",
    reason=Reason.POSSIBLE,
    application=application_given,
    examples=("outbox again-all --participant mailer",),
)
