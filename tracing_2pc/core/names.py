"""The one registry of names: spans, attributes, metrics, failpoints.

Dashboards, alert rules, documentation and tests are checked against this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

TRANSACTION: Final = "tpc.transaction"
BEGIN: Final = "tpc.begin"
DECIDE: Final = "tpc.decide"
BRANCH: Final = "tpc.branch"
DELIVER: Final = "tpc.deliver"
FINISH: Final = "tpc.finish"
RECOVERY: Final = "tpc.recovery"
OUTBOX_SEND: Final = "tpc.outbox.send"
IN_DOUBT: Final = "tpc.in_doubt"
SNAPSHOT: Final = "tpc.in_doubt.snapshot"
QUARANTINE: Final = "tpc.quarantine"
OPERATOR: Final = "tpc.operator"


class Span(NamedTuple):
    """A span: its parent, its meaning, and its kind."""

    parent: str
    meaning: str
    kind: str = "internal"


SPANS: Final[dict[str, Span]] = {
    TRANSACTION: Span("none", "one attempt at a batch, from begin to its decision"),
    BEGIN: Span(TRANSACTION, "the attempt and its participants go on record"),
    BRANCH: Span(TRANSACTION, "one task writes one partition"),
    "<Sink>.begin": Span(BRANCH, "a sink opens a branch"),
    "<Sink>.invoke": Span(
        BRANCH, "from its first record to its last, with their count"
    ),
    "<Sink>.pre_commit": Span(BRANCH, "the branch is made durable"),
    "POST /prepare": Span("<Sink>.pre_commit", "one participant is asked", "client"),
    "POST <prefix>/prepare": Span(
        "POST /prepare", "a participant makes a branch durable and votes", "server"
    ),
    DECIDE: Span(TRANSACTION, "the decision becomes durable: the commit point"),
    DELIVER: Span(
        TRANSACTION,
        "the decision is about to be sent to all who have not acknowledged it",
    ),
    "<Sink>.commit": Span(DELIVER, "one participant is told to commit"),
    "<Sink>.abort": Span(
        DELIVER,
        "one is told to abort, or to drop what a commit did not choose; or, below its "
        "branch, a task aborts",
    ),
    "POST /commit": Span("<Sink>.commit", "the request", "client"),
    "POST /abort": Span("<Sink>.abort", "the request", "client"),
    "POST <prefix>/commit": Span(
        "POST /commit", "a participant commits and seals", "server"
    ),
    "POST <prefix>/abort": Span(
        "POST /abort", "a participant aborts and seals", "server"
    ),
    "<STATEMENT>": Span(
        "the request",
        "a statement at the database of the participant, or of the log",
        "client",
    ),
    FINISH: Span(
        TRANSACTION,
        "from the decision until every participant has acknowledged, or a person has "
        "concluded it; exported by who finishes",
    ),
    QUARANTINE: Span(
        TRANSACTION,
        "an answer contradicts the decision, a person must look; and another when the "
        "quarantine ends",
    ),
    IN_DOUBT: Span("POST /prepare", "a participant waited over 10 s for the decision"),
    SNAPSHOT: Span(
        TRANSACTION,
        "no length; written at 1, 2, 4 … times the threshold while something is wrong; "
        "or a trace of its own",
    ),
    OUTBOX_SEND: Span(
        "POST <prefix>/commit", "a stored request goes to the partner, later"
    ),
    "POST": Span(OUTBOX_SEND, "the partner's API is called", "client"),
    RECOVERY: Span("none", "a sweep over what is unfinished, linked to it"),
    OPERATOR: Span("none", "a person decides by hand, linked to the root"),
    "GET <prefix>/transactions": Span(
        "the caller", "a participant lists what is not sealed", "server"
    ),
    "GET <prefix>/transactions/<transaction_id>": Span(
        "the caller", "a participant shows one transaction", "server"
    ),
    "POST <prefix>/resolve": Span(
        "the caller", "an orphan is resolved there by hand", "server"
    ),
    "<Writer>.batch": Span("none", "a batch of one of PySpark's writers"),
    "<Writer>.write": Span("<Writer>.batch", "one task writes its rows"),
    "<Writer>.commit": Span(
        "<Writer>.batch", "commits a batch; every commit message arrived"
    ),
    "<Writer>.abort": Span("<Writer>.batch", "aborts a batch; messages may be missing"),
}
"""Spans, in the order of a batch."""


def registered_name(
    name: str, kind: str, attributes: Mapping[str, object], parent: str = ""
) -> str:
    """Return the name that `SPANS` has for a span; its own if there is none.

    `kind` is in small letters; `parent` is the parent's name.
    """
    phase = attributes.get("tpc.phase")
    if kind == "server":
        method, _, path = name.partition(" ")
        for known in SPANS:
            start, prefix, end = known.partition(" <prefix>")
            if prefix and method == start and path.endswith(end):
                return known
    if phase in PHASES:
        of_writer = phase == "write" or parent.endswith(".batch")
        return f"<{'Writer' if of_writer else 'Sink'}>.{name.partition('.')[2]}"
    if kind == "client" and "db.operation.name" in attributes:
        return "<STATEMENT>"
    return "<Writer>.batch" if name.endswith(".batch") else name


def describe_span(
    name: str, kind: str, attributes: Mapping[str, object], parent: str = ""
) -> str:
    """Return what a span means; empty if it is none of ours."""
    known = SPANS.get(registered_name(name, kind, attributes, parent))
    return known.meaning if known else ""


SINK_METHODS: Final[dict[str, tuple[str, ...]]] = {
    "begin": ("begin", "begin_transaction", "beginTransaction"),
    "invoke": ("invoke",),
    "invoke_batch": ("invoke_batch",),
    "pre_commit": ("pre_commit", "preCommit"),
    "commit": ("commit",),
    "abort": ("abort",),
    "recover_and_commit": ("recover_and_commit", "recoverAndCommit"),
    "recover_and_abort": ("recover_and_abort", "recoverAndAbort"),
    "commit_transaction": ("commit_transaction",),
    "abort_transaction": ("abort_transaction",),
    "check_job": ("check_job",),
    "check_store": ("check_store",),
    "before_tasks": ("before_tasks",),
    "finish_recovery": (
        "finish_recovery",
        "finish_recovering_context",
        "finishRecoveringContext",
    ),
}
"""The methods of a sink by their names, ours first and then Flink's: the first that is
there counts."""

PHASES: Final = ("begin", "invoke", "pre_commit", "commit", "abort", "write")
"""Phases of a sink; and of one of PySpark's writers, which has the last three."""

ATTRIBUTES: Final[dict[str, str]] = {
    "tpc.transaction.id": "<application>.<batch>.<attempt>",
    "tpc.application": "name of the streaming query",
    "tpc.batch": "Spark's batch id",
    "tpc.attempt": "which try at the batch, from 1",
    "tpc.run": "one life of the query",
    "tpc.branch": "<partition>.<task attempt>",
    "tpc.participant": "configured name of a participant",
    "tpc.participants": "how many participants are on record",
    "tpc.phase": "phase of a sink",
    "tpc.request": "to a participant: prepare, commit, abort, resolve, list or show",
    "tpc.rows": "records in a branch or transaction",
    "tpc.rows.rejected": "records of it that participants refused, kept apart",
    "tpc.bytes": "bytes of a prepare's body",
    "tpc.decision": "what the log holds: commit or abort",
    "tpc.cause": "why it is abort: a cause of `tpc.aborts`, or operator",
    "tpc.failure": "of an abort: at which step, and who answered what, or raised",
    "tpc.outcome": "what it has come to: committed, aborted, mixed, hazard, concluded",
    "tpc.recovered": "another process has finished what it had not decided",
    "tpc.state": "state of a transaction or branch",
    "tpc.vote": "commit, abort or read_only",
    "tpc.action": "what a person has decided: commit, abort or conclude",
    "tpc.pending": "participants that have not acknowledged",
    "tpc.waits_for": "names of the participants that a diagnosis is about",
    "tpc.replay": "the batch was decided before: nothing was written",
    "tpc.unfinished": "transactions that a recovery sweep found",
    "tpc.diagnosis": "what the watcher thinks is wrong",
    "tpc.age": "seconds for which it has been so",
    "tpc.root.reconstructed": "of a writer: a task exported the root of its batch",
    "db.system.name": "OpenTelemetry: postgresql or sqlite",
    "db.namespace": "OpenTelemetry: the database; of SQLite the file's name",
    "db.collection.name": "OpenTelemetry: the table that rows go into",
    "db.operation.name": "OpenTelemetry: the first words of a statement, no more",
    "error.type": "class of the error, never its text; or the status of an answer",
    "http.request.method": "OpenTelemetry",
    "http.response.status_code": "OpenTelemetry",
    "http.route": "OpenTelemetry; routes hold no ids",
    "messaging.system": "OpenTelemetry: tracing_2pc, an outbox",
    "messaging.operation.name": "OpenTelemetry: send",
    "messaging.operation.type": "OpenTelemetry: send",
    "messaging.destination.name": "OpenTelemetry: name of the outbox",
    "messaging.message.id": "OpenTelemetry: the idempotency key",
    "server.address": "OpenTelemetry",
    "server.port": "OpenTelemetry",
    "url.full": "OpenTelemetry; without query; of a partner without path",
    "url.path": "OpenTelemetry; without query",
    "url.scheme": "OpenTelemetry",
}
"""The allow-list. Never a record, a payload, a credential, a query string, or the
text of a foreign exception."""


class Metric(NamedTuple):
    """One instrument."""

    kind: str
    unit: str  # UCUM
    meaning: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()  # upper bounds, of a histogram, in its unit


CAUSES: Final[dict[str, str]] = {
    "vote": "a participant voted abort",
    "timeout": "the driver had no decision within the transaction timeout",
    "superseded": "a later start of the query took over before the decision",
    "error": "a task or the driver failed, or a participant did not answer",
    "recovery": "older than the transaction timeout, found by a sweep",
}
"""Why abort was decided, as far as the process that decided it knows."""

LABELS: Final[dict[str, tuple[str, ...]]] = {
    "header": ("traceparent", "tracestate", "sw8", "sw8-correlation"),
    "signal": ("traces",),
    "outcome": ("commit", "abort"),
    "cause": tuple(CAUSES),
    "phase": ("prepare", "commit", "abort"),
    "result": ("ok", "refused", "unavailable"),
    "answer": ("stored", "known", "conflict", "malformed", "later"),
    "state": ("active", "committing", "aborting", "quarantined"),
    "diagnosis": ("stuck", "orphaned", "decided_not_applied", "lost", "diverged"),
    "action": (
        *("commit", "abort", "conclude", "give up"),
        *("again", "drop", "send", "sent"),
    ),
}
"""Labels of metrics, and all values that they can have. Besides these there are only
`participant`: a configured name, or `log` and `other` in what the watcher measures;
and `application`, in what the watcher finds wrong: at most 20 at once, then `other`;
empty where nothing is wrong. Never an id."""

_REQUEST: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
_DOUBT: Final = (0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 86400.0)
_WRITE: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 10.0)

METRICS: Final[dict[str, Metric]] = {
    "tpc.transactions": Metric(
        "counter", "{transaction}", "decisions that this process made", ("outcome",)
    ),
    "tpc.aborts": Metric(
        "counter", "{transaction}", "those of them that were abort, and why", ("cause",)
    ),
    "tpc.rows.rejected": Metric(
        "counter", "{row}", "rows of committed batches that went to `rejects`"
    ),
    "tpc.phase.duration": Metric(
        "histogram",
        "s",
        "one request: as the driver or recovery waited, as a participant worked",
        ("phase", "participant", "result"),
        _REQUEST,
    ),
    "tpc.commit.attempts": Metric(
        "counter",
        "{request}",
        "times that a participant was told to commit",
        ("participant", "result"),
    ),
    "tpc.decision_log.write": Metric(
        "histogram", "s", "how long the log took to decide", buckets=_WRITE
    ),
    "tpc.in_doubt.duration": Metric(
        "histogram",
        "s",
        "at a participant, from a transaction's first prepared branch to its decision",
        buckets=_DOUBT,
    ),
    "tpc.outbox.backlog": Metric(
        "gauge",
        "{request}",
        "requests committed and not confirmed by the partner; of a relay, records that "
        "readers cannot pass yet",
    ),
    "tpc.outbox.oldest_age": Metric("gauge", "s", "age of the oldest of them"),
    "tpc.outbox.quarantined": Metric(
        "gauge", "{request}", "requests that were set aside: look at them"
    ),
    "tpc.outbox.stopped": Metric(
        "gauge",
        "{application}",
        "applications whose requests the partner refused one after the other; 1 for "
        "a relay that has stopped",
    ),
    "tpc.relay.position": Metric(
        "gauge",
        "{publication}",
        "number of the last publication that the broker has taken",
    ),
    "tpc.relay.open": Metric(
        "gauge",
        "{transaction}",
        "transactions committed that readers of the topic cannot pass yet",
    ),
    "tpc.relay.refused": Metric(
        "gauge",
        "{application}",
        "applications that wait because the broker does not take their commits",
    ),
    "tpc.relay.hidden_age": Metric(
        "gauge",
        "s",
        "for how long readers have not seen what is published; 0 if they do",
    ),
    "tpc.relay.unreadable_age": Metric(
        "gauge", "s", "for how long it could not be read what is published; 0 if it can"
    ),
    "tpc.inbox.backlog": Metric(
        "gauge", "{event}", "events that the slowest reader has not committed yet"
    ),
    "tpc.inbox.oldest_age": Metric("gauge", "s", "age of the oldest of them"),
    "tpc.inbox.events": Metric(
        "counter",
        "{event}",
        "events that producers sent, and what each was answered; a request that cannot "
        "be read counts as one",
        ("answer",),
    ),
    "tpc.prepared_slots.used": Metric(
        "gauge", "{transaction}", "prepared transactions of the database server"
    ),
    "tpc.prepared_slots.max": Metric(
        "gauge", "{transaction}", "how many it takes: max_prepared_transactions"
    ),
    "tpc.in_doubt.branches": Metric(
        "gauge", "{branch}", "branches that voted commit and wait for a decision"
    ),
    "tpc.oldest_in_doubt_age": Metric("gauge", "s", "age of the oldest of them"),
    "tpc.uploads": Metric("gauge", "{branch}", "branches whose rows are being written"),
    "tpc.propagation.rejected": Metric(
        "counter",
        "{header}",
        "trace headers that this process could not read: as if absent",
        ("header",),
    ),
    "tpc.telemetry.dropped": Metric(
        "counter",
        "{span}",
        "spans that this process lost: its queue was full, or no collector took them",
        ("signal",),
    ),
    "tpc.unfinished_transactions": Metric(
        "gauge", "{transaction}", "transactions that the log has not closed", ("state",)
    ),
    "tpc.oldest_unfinished_age": Metric(
        "gauge", "s", "age of the oldest of them", ("state",)
    ),
    "tpc.diagnoses": Metric(
        "gauge",
        "{transaction}",
        "what the watcher found wrong, and where",
        ("application", "diagnosis", "participant"),
    ),
    "tpc.oldest_diagnosed_age": Metric(
        "gauge",
        "s",
        "for how long the oldest of them has had no step; only while there are any",
        ("application", "diagnosis", "participant"),
    ),
    "tpc.oldest_pending_age": Metric(
        "gauge",
        "s",
        "age of the oldest commit that a participant has not acknowledged, when the "
        "log was last read; only from 10 s on",
        ("application", "participant"),
    ),
    "tpc.quarantined_transactions": Metric(
        "gauge",
        "{transaction}",
        "transactions that a person must look at",
        ("application",),
    ),
    "tpc.job.down_age": Metric(
        "gauge",
        "s",
        "seconds since a job failed, or since its driver was last seen, from 30 s on; "
        "0 while it runs, and after it was stopped",
        ("application",),
    ),
    "tpc.watcher.last_success_timestamp": Metric(
        "gauge", "s", "when the watcher last read all it asked for", ("participant",)
    ),
    "tpc.operator.actions": Metric(
        "counter", "{action}", "what persons decided by hand", ("action",)
    ),
}
"""Metrics, by their names in OpenTelemetry. Labels only from closed sets."""


def prometheus_name(name: str) -> str:
    """Return what a metric is called at Prometheus, also by way of a collector."""
    metric = METRICS[name]
    unit = "_seconds" if metric.unit == "s" else ""
    total = "_total" if metric.kind == "counter" else ""
    return name.replace(".", "_") + unit + total


FAILPOINTS: Final[dict[str, str]] = {
    "driver.before_recovery": "Spark has committed the batch before, or has started",
    "driver.before_begin": "what was unfinished is delivered, nothing is on record",
    "driver.after_begin": "the transaction is on record, nothing was asked",
    "driver.before_tasks": "its clock runs, no task does",
    "driver.during_collection": "every branch has voted, the receipts are being read",
    "driver.after_votes": "every vote is in",
    "driver.before_decide": "the log is about to be asked to decide commit",
    "driver.after_decide": "decided commit, nothing was sent",
    "driver.after_finish": "all acknowledged, before Spark's own commit",
    "delivery.between_commits": "one more participant's commit is acknowledged",
    "delivery.before_commit": "one more participant is about to be told",
    "delivery.before_finish": "all have acknowledged, the log does not say finished",
    "recovery.before_read": "a sweep has begun and has not read the log",
    "recovery.after_read": "it knows what is unfinished, nothing was done",
    "recovery.after_expire": "an attempt is decided abort for its age, nothing is sent",
    "recovery.between_transactions": "one is finished, the next one is not",
    "executor.before_begin": "a task, or the driver for it, has rows and no branch",
    "executor.mid_invoke": "some of a branch's rows are written",
    "executor.before_pre_commit": "all of them are, nothing was sent",
    "executor.after_first_prepare": "one task has prepared everywhere",
    "executor.after_pre_commit": "a task has voted, its receipt is not out",
    "rejects.after_refusal": "rows are rejected, and their branch is to be dropped",
    "rejects.before_rewrite": "it is dropped, and about to be written without them",
    "rejects.before_keeping": "others have voted, rejected rows are kept nowhere",
    "rejects.after_keeping": "they are prepared, too, the task's receipts are not out",
    "participant.at_open": "a service starts and looks its tables over",
    "participant.before_prepare": "a branch is claimed, none of it is written",
    "participant.after_prepare": "the branch is durable, the vote was not answered",
    "participant.between_branches": "one branch is committed, one is to come",
    "participant.before_commit": "the commit request has arrived, nothing changed",
    "participant.after_commit": "committed, not yet answered",
    "participant.before_abort": "the abort request has arrived, nothing changed",
    "participant.after_abort": "aborted, not yet answered",
    "files.after_write": "a branch's files are written and not flushed",
    "files.between_renames": "one file of a commit is visible, one is to come",
    "files.before_manifest": "all of them are, no manifest says so",
    "files.after_manifest": "the manifest is there, the folder aside not yet removed",
    "files.before_abort": "the abort has arrived, nothing was removed",
    "delta.before_list": "a branch's files are durable, nothing says which",
    "delta.between_places": "one file is where the table will list it, one is to come",
    "delta.before_commit": "all of them are, the table's log does not list them",
    "delta.after_commit": "readers see the rows, what is aside is not yet removed",
    "iceberg.between_files": "one file of a branch is whole, one is to come",
    "iceberg.before_manifest": "all of them are durable, nothing says which",
    "iceberg.before_commit": "the files are looked at, the catalog knows nothing",
    "iceberg.after_commit": "readers see the rows, what is aside is not yet removed",
    "outbox.before_call": "a request is next in the queue, the partner knows nothing",
    "outbox.after_call": "the partner has answered, nothing of it is recorded",
    "launch.after_push": "an image is built and pushed, and not staged",
    "launch.after_create": "a job is created and not running, its vote is not in",
    "launch.before_start": "what ran before is stopped, the new job does not run",
    "launch.after_start": "the new job runs, nothing of it is noted",
    "relay.after_fence": "whoever published before cannot any more, nothing is read",
    "relay.before_publish": "a publication is begun, the broker knows nothing",
    "relay.before_position": "the broker has its records, and no position",
    "relay.before_commit": "it has the position, too, and no reader sees anything",
    "relay.before_confirm": "readers see it, nothing is confirmed",
    "inbox.before_commit": "events are written, and nobody sees them",
    "inbox.after_commit": "they are durable, and nobody was answered",
}
"""Points at which `tracing_2pc.core.failpoints` can kill a process, for tests and the
demo: what holds there."""
