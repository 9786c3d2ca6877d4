"""End an application by hand, so that no driver of it is missed."""

from __future__ import annotations

from typing import Final

from tracing_2pc.core.errors import ContractError
from tracing_2pc.core.model import check_application
from tracing_2pc.inspection.actions import Advice
from tracing_2pc.inspection.jobs import JobState, jobs_of
from tracing_2pc.operations.actions.action import (
    Action,
    Done,
    Given,
    PreparedAction,
    Preview,
    Reach,
    application_given,
    of_application,
)


def prepare(reach: Reach, given: Given) -> PreparedAction:
    """Look up the state of its job."""
    from tracing_2pc.operations.recover import raise_if_unknown  # opens stores

    application, now = check_application(given["application"]), reach.clock.now()
    job = jobs_of(reach.log.presences(application), reach.log.clock()).get(application)
    if job is None:
        raise_if_unknown(reach.log, application)
    elif job.state is JobState.RUNNING:
        raise ContractError(
            f"{application} is not retired: {job.describe(now)}. Stop its query"
        )

    def run(who: str, reason: str) -> list[Done]:
        reach.log.retire(application, who=who, why=reason)
        text = f"{application} is retired: no driver of it is missed"
        return [Done(text, {"application": application, "retired": True})]

    stopped = job is None or job.state is JobState.STOPPED
    preview = Preview(
        Advice(
            RETIRE.command(given),
            safe=True,
            effect=f"reports no more that the job of {application} is down; what is "
            "unfinished stays a finding of its own, and a run that starts is seen",
        ),
        facts=(("Its job", job.describe(now) if job else "none has reported"),),
        gone=f"no job of {application} is missed" if stopped else "",
    )
    return PreparedAction(
        given, "Retire", application, "its name", lambda: preview, run
    )


RETIRE: Final = Action(
    "retire",
    "end an application whose job is down, and is not to run any more",
    (of_application("whose job is not missed any more"),),
    prepare,
    title="Retire an application",
    place="application",
    application=application_given,
    examples=("retire --application orders --reason 'moved to another cluster'",),
)
