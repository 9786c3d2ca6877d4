"""Finish decided transactions, and abort those out of time, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tracing_2pc.inspection.actions import Advice
from tracing_2pc.operations.actions.action import (
    Action,
    Consent,
    Done,
    Given,
    PreparedAction,
    Preview,
    Reach,
    Reason,
    application_given,
    of_application,
)
from tracing_2pc.protocol.recovery import RecoveryResult


def prepare(reach: Reach, given: Given) -> PreparedAction:
    """Check that the log knows the application, if one is named."""
    from tracing_2pc.operations.recover import raise_if_unknown  # opens stores

    application = given.get("application")
    if application is not None:
        raise_if_unknown(reach.log, application)
    scope = f" of {application}" if application else ""
    effect = (
        f"delivers each decision{scope} that is not acknowledged by all, aborts "
        "attempts without a decision that ran out of time, and sends what waits in "
        "outboxes without a service. It may take minutes"
    )
    preview = Preview(Advice(RECOVER.command(given), safe=True, effect=effect))
    about = application or "all applications"
    return PreparedAction(
        given,
        "Finish what is decided",
        about,
        "its name",
        lambda: preview,
        lambda _who, _reason: _run(reach, application),
    )


def _run(reach: Reach, application: str | None) -> Iterator[Done]:
    """Yield the result of each transaction, then of each outbox, then the counts."""
    from tracing_2pc.operations.recover import recover, send_outboxes

    results: list[RecoveryResult] = []
    for result in recover(reach.log, reach.settings, application):
        results.append(result)
        yield _report(result)
    for name, count in send_outboxes(reach.settings, application).items():
        text = f"{count} records wait in its outbox: start its job, or again"
        text = count if isinstance(count, str) else f"participant {name!r}: {text}"
        yield Done(text, {"participant": name, "waiting": count}, well=False)
    done = sum(result.done for result in results)
    under_way = sum(result.under_way for result in results)
    going_on = f"{under_way} under way, " if under_way else ""
    counts = f"{done} finished, {going_on}{len(results) - done - under_way} left"
    yield Done(counts if results else "nothing unfinished")


def _report(result: RecoveryResult) -> Done:
    from tracing_2pc.inspection.view import summarize_record

    item = {
        **summarize_record(result.record),
        "done": result.done,
        "under_way": result.under_way,
        "remark": result.remark,
    }
    line = f"{result.record.id!s:<44} {result.remark}"
    return Done(line, item, well=result.done or result.under_way)


RECOVER: Final = Action(
    "recover",
    "finish what is decided, without Spark",
    (of_application("only this one", required=False),),
    prepare,
    title="Finish what is decided",
    place="application",
    reason=Reason.NOT_KEPT,
    consent=Consent.NOT_ASKED,
    application=application_given,
    examples=("recover --application orders",),
)
