"""Take over a query whose decision log is lost: shown, and written only when told to.

The gravest of all: the record written here decides whether a batch is skipped. At the
terminal nothing is asked, because no record should be written that was not read before;
without `--yes` it only shows. In the browser a token must be for all applications.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from tracing_2pc.core.addresses import addresses_of
from tracing_2pc.core.model import Shown, check_application
from tracing_2pc.core.states import ParticipantState
from tracing_2pc.inspection.actions import Advice
from tracing_2pc.inspection.wording import format_count, join_names
from tracing_2pc.operations.actions.action import (
    Action,
    Argument,
    Consent,
    Done,
    Given,
    PreparedAction,
    Preview,
    Reach,
    of_application,
)

if TYPE_CHECKING:
    from tracing_2pc.operations.adopt import Adoption

_NOT_WRITTEN: Final = (
    "nothing was written. Stop the query, be sure that its log is gone for good (it "
    "may have decided otherwise), then give --yes and --reason"
)


def prepare(reach: Reach, given: Given) -> PreparedAction:
    """Read the checkpoint, and ask log and participants about its query."""
    from tracing_2pc.inspection.checkpoint import read_checkpoint
    from tracing_2pc.operations.adopt import adopt, examine  # asks participants

    application = check_application(given["application"])
    checkpoint = read_checkpoint(given["checkpoint"])
    participants = addresses_of(reach.participants, application)
    log = reach.log
    with reach.asking(participants):
        adoption = examine(log, participants, application, checkpoint)
    holdings = tuple(_holdings(adoption, participants))

    def run(who: str, reason: str) -> list[Done]:
        if written := not adoption.undecidable:
            adopt(log, adoption, reason, who, reach.settings.rejects)
        return [_report(adoption, holdings, written=written)]

    report = _report(adoption, holdings, written=False)
    follows = tuple(_conclusions(adoption, "would be written"))
    preview = Preview(
        Advice(
            ADOPT.command(given),
            safe=False,
            effect="writes into the log what Spark and the participants hold",
            cost=(
                "if the lost log is found again, or decided otherwise, a batch may be "
                "skipped or written twice",
            ),
        ),
        facts=(
            *(("Held", line) for line in holdings),
            *(("It follows", line) for line in follows),
        ),
        seen=(*holdings, *follows),
        gone="; ".join(follows) if adoption.undecidable else "",
        report=report,
    )
    return PreparedAction(
        given, "Adopt", checkpoint.query, "the query's id", lambda: preview, run
    )


def _report(adoption: Adoption, holdings: Iterable[str], *, written: bool) -> Done:
    """Return the findings, and the records that are or would be written."""
    to_be = "written" if written else "would be written"
    lines = [*holdings, *_conclusions(adoption, to_be)]
    if written:
        lines.append("start the query")
    elif not adoption.undecidable:
        lines.append(_NOT_WRITTEN)
    first, *more = lines
    item = _item(adoption, written=written)
    return Done(first, item, not adoption.undecidable, tuple(more))


def _item(adoption: Adoption, *, written: bool) -> dict[str, Any]:
    return {
        "application": adoption.application,
        "query": adoption.checkpoint.query,
        "batch": adoption.checkpoint.next,
        "in_flight": adoption.checkpoint.in_flight,
        "participants": list(adoption.participants),
        "committed": list(adoption.committed),
        "transaction_id": str(adoption.transaction) if adoption.answers else None,
        "undecidable": adoption.undecidable,
        "doubts": list(adoption.doubts),
        "orphans": [
            {
                "transaction_id": str(orphan.transaction),
                "participant": orphan.participant,
                "rows": orphan.rows,
                "command": orphan.command,
            }
            for orphan in adoption.orphans
        ],
        "written": written,
    }


def _holdings(adoption: Adoption, asked: Iterable[str]) -> Iterator[str]:
    """Yield the batches that Spark and each participant hold."""
    spark, application = adoption.checkpoint, adoption.application
    done = "begun and not committed: Spark runs it again"
    if not spark.in_flight:
        done = f"committed: Spark goes on with batch {spark.next}"
    yield f"{spark.folder}: query {spark.query}; batch {spark.last} is {done}"
    for name in asked:
        known = ", ".join(
            f"{transaction} {by_name[name].state}, {_rows(by_name[name])}"
            for transaction, by_name in adoption.answers.items()
            if by_name[name].state is not ParticipantState.UNKNOWN
        )
        nothing = f"nothing of batch {spark.next}"
        if name not in adoption.participants:
            nothing = f"nothing of {application}; not taken for a participant of it"
        yield f"{name}: {known or nothing}"
    yield (
        "not asked: sinks of the job's own, and services without an address here. If "
        f"{application} has any, look first what they hold"
    )


def _rows(shown: Shown) -> str:
    branches = (b for b in shown.branches if str(b.state) == str(shown.state))
    return format_count(sum(branch.rows for branch in branches), "row")


def _conclusions(adoption: Adoption, to_be: str) -> Iterator[str]:
    """Yield the new records of the log, or a person's first steps; and the orphans."""
    application, transaction = adoption.application, adoption.transaction
    spark, held = adoption.checkpoint, join_names(adoption.committed)
    for doubt in adoption.doubts:
        yield f"nothing was written: {doubt}"
    if adoption.is_split:
        yield (
            f"nothing was written: {transaction} is committed at {held} and not at the "
            "others, and no program can tell what they lack. For each of the others: "
            "if it is named as an orphan below, run that command. If it lacks rows, "
            f"bring them there, then put Spark's commit of batch {spark.next} into the "
            f"checkpoint, and `tracing-2pc init --application {application} "
            f"--from-batch {spark.next + 1}`. If it is no participant any more, leave "
            "it out of `participants`. Else adopt again"
        )
    elif not adoption.doubts:
        yield (
            f"{to_be}: {application} is query {spark.query} and goes on with batch "
            f"{spark.next}; what is before that is finished"
        )
        if adoption.committed:
            done = f"{transaction} is committed at {held}"
            yield f"{to_be}: {done}; its replay is skipped"
        elif spark.in_flight:
            next_ = f"{application}.{spark.next}.{transaction.attempt + 1}"
            yield f"{to_be}: it is committed nowhere; its replay is written as {next_}"
    for orphan in adoption.orphans:
        rows = format_count(orphan.rows, "row")
        orphaned = f"{orphan.transaction} is prepared at {orphan.participant}"
        ends = "nobody here knows what was decided: look at its trace, or its rows"
        if orphan.command is not None:
            ends = f"`{orphan.command}`"
        yield f"orphan: {orphaned}, {rows}: {ends}"


ADOPT: Final = Action(
    "adopt",
    "take over a query whose decision log is lost",
    (
        of_application("its name in the job"),
        Argument(
            "checkpoint",
            "its checkpoint's folder on this machine",
            required=True,
            metavar="DIR",
        ),
    ),
    prepare,
    title="Adopt a query whose log is lost",
    consent=Consent.ONLY_BY_YES,
    # No `application`: a token that is bound to one may not.
    examples=("adopt --application orders --checkpoint /data/checkpoints/orders",),
)
