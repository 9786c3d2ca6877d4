"""`tracing-2pc adopt`: reads, says what it would write, and writes it with --yes."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator

from tracing_2pc.cli.arguments import DONE, LEFT
from tracing_2pc.cli.terminal import asking, print_either, safe
from tracing_2pc.core.addresses import addresses_of
from tracing_2pc.core.model import Shown, check_application
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import ParticipantState
from tracing_2pc.inspection.checkpoint import read_checkpoint
from tracing_2pc.inspection.wording import format_count, join_names
from tracing_2pc.operations.adopt import Adoption, adopt, examine
from tracing_2pc.operations.resolve import check_reason
from tracing_2pc.operations.wiring import open_configured_log, open_participants


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Say what checkpoint and participants hold, and what follows; write if told to."""
    application = check_application(options.application)
    if options.yes:
        check_reason(options.reason)
    checkpoint = read_checkpoint(options.checkpoint)
    participants = addresses_of(open_participants(settings), options.application)
    with open_configured_log(settings) as log:
        with asking(participants):
            adoption = examine(log, participants, application, checkpoint)
        written = options.yes and not adoption.undecidable
        if written:
            adopt(log, adoption, options.reason)
    item = {
        "application": application,
        "query": checkpoint.query,
        "batch": checkpoint.next,
        "in_flight": checkpoint.in_flight,
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
    to_be = "written" if written else "would be written"
    lines = [*_holdings(adoption, participants), *_conclusions(adoption, to_be)]
    if written:
        lines.append("start the query")
    elif not adoption.undecidable:
        lines.append(
            "nothing was written. Stop the query, be sure that its log is gone for "
            "good (it may have decided otherwise), then give --yes and --reason"
        )
    print_either(options, item, (safe(line, 2000) for line in lines))
    return LEFT if adoption.undecidable else DONE


def _holdings(adoption: Adoption, asked: Iterable[str]) -> Iterator[str]:
    """Yield what Spark and each participant hold."""
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
    """Yield what the log is told, or what a person does first; and what is orphaned."""
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
        at = f"{orphan.transaction} is prepared at {orphan.participant}"
        ends = "nobody here knows what was decided: look at its trace, or its rows"
        if orphan.command is not None:
            ends = f"`{orphan.command}`"
        yield f"orphan: {at}, {rows}: {ends}"
