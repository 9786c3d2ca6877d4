"""The one registry of names: spans, attributes, metrics, failpoints.

Dashboards, alert rules, documentation and tests are checked against this module.
"""

from __future__ import annotations

from typing import Final, NamedTuple

TRANSACTION: Final = "tpc.transaction"
BEGIN: Final = "tpc.begin"
DECIDE: Final = "tpc.decide"
BRANCH: Final = "tpc.branch"
DELIVER: Final = "tpc.deliver"
FINISH: Final = "tpc.finish"
RECOVERY: Final = "tpc.recovery"
PREPARE: Final = "tpc.prepare"
COMMIT: Final = "tpc.commit"
ABORT: Final = "tpc.abort"
RESOLVE: Final = "tpc.resolve"
LIST: Final = "tpc.list"
SHOW: Final = "tpc.show"
OUTBOX_SEND: Final = "tpc.outbox.send"
IN_DOUBT: Final = "tpc.in_doubt"
SNAPSHOT: Final = "tpc.in_doubt.snapshot"
OPERATOR: Final = "tpc.operator"


class Span(NamedTuple):
    """A span: its kind, what it is a child of, and what it means."""

    kind: str
    parent: str
    meaning: str


SPANS: Final[dict[str, Span]] = {
    TRANSACTION: Span(
        "internal", "none", "one attempt at a batch, from begin to its decision"
    ),
    BEGIN: Span(
        "internal", TRANSACTION, "the attempt and its participants go on record"
    ),
    BRANCH: Span("internal", TRANSACTION, "one task writes one partition"),
    "<Sink>.begin": Span("internal", BRANCH, "a sink opens a branch"),
    "<Sink>.invoke": Span(
        "internal", BRANCH, "from its first record to its last, with their count"
    ),
    "<Sink>.pre_commit": Span("internal", BRANCH, "the branch is made durable"),
    "POST /prepare": Span("client", "<Sink>.pre_commit", "one participant is asked"),
    PREPARE: Span(
        "server", "POST /prepare", "a participant makes a branch durable and votes"
    ),
    DECIDE: Span(
        "internal", TRANSACTION, "the decision becomes durable: the commit point"
    ),
    DELIVER: Span(
        "internal",
        TRANSACTION,
        "the decision is about to be sent to all who have not acknowledged it",
    ),
    "<Sink>.commit": Span("internal", DELIVER, "one participant is told to commit"),
    "<Sink>.abort": Span(
        "internal",
        DELIVER,
        "one is told to abort, or to drop what a commit did not choose; or, below its "
        "branch, a task aborts",
    ),
    "POST /commit": Span("client", "<Sink>.commit", "the request"),
    "POST /abort": Span("client", "<Sink>.abort", "the request"),
    COMMIT: Span("server", "POST /commit", "a participant commits and seals"),
    ABORT: Span("server", "POST /abort", "a participant aborts and seals"),
    "<STATEMENT>": Span(
        "client",
        "the request",
        "COPY, INSERT, PREPARE TRANSACTION, COMMIT …: rows move, or become durable",
    ),
    FINISH: Span("internal", DELIVER, "every participant has acknowledged"),
    IN_DOUBT: Span(
        "internal", "POST /prepare", "a participant waited over 10 s for the decision"
    ),
    SNAPSHOT: Span(
        "internal",
        TRANSACTION,
        "no length: the watcher sees that something is wrong, ever more rarely",
    ),
    OUTBOX_SEND: Span(
        "internal", "POST /prepare", "a stored request goes to the partner, later"
    ),
    "POST": Span("client", OUTBOX_SEND, "the partner's API is called"),
    RECOVERY: Span("internal", "none", "a sweep over what is unfinished, linked to it"),
    OPERATOR: Span("internal", "none", "a person decides by hand, linked to the root"),
    LIST: Span("server", "the caller", "a participant lists what is not sealed"),
    SHOW: Span("server", "the caller", "a participant shows one transaction"),
    RESOLVE: Span("server", "the caller", "an orphan is resolved there by hand"),
    "<Writer>.batch": Span("internal", "none", "a batch of one of PySpark's writers"),
    "<Writer>.write": Span("internal", "<Writer>.batch", "one task writes its rows"),
    "<Writer>.commit": Span("internal", "<Writer>.batch", "all its messages are there"),
    "<Writer>.abort": Span("internal", "<Writer>.batch", "some may be; or none is"),
}
"""Spans, in the order of a batch."""

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
    "tpc.phase": "phase of a sink, or request to a participant",
    "tpc.rows": "records in a branch or transaction",
    "tpc.bytes": "bytes of a prepare's body",
    "tpc.decision": "what the log holds: commit or abort",
    "tpc.state": "state of a transaction or branch",
    "tpc.vote": "commit, abort or read_only",
    "tpc.action": "what a person has decided: commit, abort or conclude",
    "tpc.pending": "participants that have not acknowledged",
    "tpc.replay": "the batch was decided before: nothing was written",
    "tpc.unfinished": "transactions that a recovery sweep found",
    "tpc.diagnosis": "what the watcher thinks is wrong",
    "tpc.age": "seconds for which it has been so",
    "tpc.root.reconstructed": "the root was exported by whoever took over",
    "db.system.name": "OpenTelemetry: postgresql or sqlite",
    "db.operation.name": "OpenTelemetry: the first words of a statement, no more",
    "error.type": "class of the error, never its text",
    "http.request.method": "OpenTelemetry",
    "http.response.status_code": "OpenTelemetry",
    "http.route": "OpenTelemetry; routes hold no ids",
    "server.address": "OpenTelemetry",
    "server.port": "OpenTelemetry",
}
"""The allow-list. Never a record, a payload, a credential, a query string, or the
text of a foreign exception."""


class Metric(NamedTuple):
    """One instrument: its kind, unit (UCUM), labels and meaning.

    A histogram has the upper bounds of its buckets, too, in its unit.
    """

    kind: str
    unit: str
    labels: tuple[str, ...]
    meaning: str
    buckets: tuple[float, ...] = ()


CAUSES: Final[dict[str, str]] = {
    "vote": "a participant voted abort",
    "timeout": "no decision within the transaction timeout, says its driver",
    "superseded": "a later start of the query took over before the decision",
    "error": "a task or the driver failed, or a participant did not answer",
    "recovery": "older than the transaction timeout, found by a sweep",
}
"""Why abort was decided, as far as who decided it can tell."""

LABELS: Final[dict[str, tuple[str, ...]]] = {
    "header": ("traceparent", "tracestate", "sw8", "sw8-correlation"),
    "signal": ("traces",),
    "outcome": ("commit", "abort"),
    "cause": tuple(CAUSES),
    "phase": ("prepare", "commit", "abort"),
    "result": ("ok", "refused", "unavailable"),
    "state": ("active", "committing", "aborting", "quarantined"),
    "diagnosis": ("stuck", "orphaned", "decided_not_applied", "lost", "diverged"),
    "action": ("commit", "abort", "conclude", "give up"),
}
"""Labels of metrics, and everything that they can say. Besides these there is only
`participant`: a configured name, or `log` and `other` in what the watcher measures.
Never an id."""

_REQUEST: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
_DOUBT: Final = (0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 86400.0)
_WRITE: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 10.0)

METRICS: Final[dict[str, Metric]] = {
    "tpc_transactions_total": Metric(
        "counter", "{transaction}", ("outcome",), "decisions that this process made"
    ),
    "tpc_aborts_total": Metric(
        "counter", "{transaction}", ("cause",), "those of them that were abort, and why"
    ),
    "tpc_phase_duration_seconds": Metric(
        "histogram",
        "s",
        ("phase", "participant", "result"),
        "one request: as the driver or recovery waited, as a participant worked",
        _REQUEST,
    ),
    "tpc_commit_attempts_total": Metric(
        "counter",
        "{request}",
        ("participant", "result"),
        "times that a participant was told to commit",
    ),
    "tpc_decision_log_write_seconds": Metric(
        "histogram", "s", (), "how long the log took to decide", _WRITE
    ),
    "tpc_in_doubt_duration_seconds": Metric(
        "histogram",
        "s",
        (),
        "at a participant, from a transaction's first prepared branch to its decision",
        _DOUBT,
    ),
    "tpc_outbox_backlog": Metric(
        "gauge", "{request}", (), "requests committed and not confirmed by the partner"
    ),
    "tpc_outbox_oldest_age_seconds": Metric(
        "gauge", "s", (), "age of the oldest of them"
    ),
    "tpc_outbox_quarantined": Metric(
        "gauge", "{request}", (), "requests that were set aside: look at them"
    ),
    "tpc_outbox_stopped": Metric(
        "gauge",
        "{application}",
        (),
        "applications whose requests the partner refused one after the other",
    ),
    "tpc_prepared_slots_used": Metric(
        "gauge", "{transaction}", (), "prepared transactions of the database server"
    ),
    "tpc_prepared_slots_max": Metric(
        "gauge", "{transaction}", (), "how many it takes: max_prepared_transactions"
    ),
    "tpc_in_doubt_branches": Metric(
        "gauge", "{branch}", (), "branches that voted commit and wait for a decision"
    ),
    "tpc_oldest_in_doubt_age_seconds": Metric(
        "gauge", "s", (), "age of the oldest of them"
    ),
    "tpc_propagation_rejected_total": Metric(
        "counter",
        "{header}",
        ("header",),
        "trace headers that this process could not read: as if absent",
    ),
    "tpc_telemetry_dropped_total": Metric(
        "counter",
        "{span}",
        ("signal",),
        "spans that this process lost: its queue was full, or nobody took them",
    ),
    "tpc_unfinished_transactions": Metric(
        "gauge", "{transaction}", ("state",), "transactions that the log has not closed"
    ),
    "tpc_oldest_unfinished_age_seconds": Metric(
        "gauge", "s", ("state",), "age of the oldest of them"
    ),
    "tpc_diagnoses": Metric(
        "gauge",
        "{transaction}",
        ("diagnosis", "participant"),
        "what the watcher found wrong, and where",
    ),
    "tpc_quarantined_transactions": Metric(
        "gauge", "{transaction}", (), "transactions that a person must look at"
    ),
    "tpc_watcher_last_success_timestamp_seconds": Metric(
        "gauge", "s", ("participant",), "when the watcher last read all it asked for"
    ),
    "tpc_operator_actions_total": Metric(
        "counter", "{action}", ("action",), "what persons decided by hand"
    ),
}
"""Metrics, by the names that Prometheus and OTLP get. Labels only from closed sets."""

FAILPOINTS: Final[dict[str, str]] = {
    "driver.before_recovery": "Spark has committed the batch before, or has started",
    "driver.before_begin": "what was unfinished is delivered, nothing is on record",
    "driver.after_begin": "the transaction is on record, nothing was asked",
    "driver.before_tasks": "its clock runs, no task does",
    "driver.during_collection": "everybody has voted, the receipts are being read",
    "driver.after_votes": "every vote is in",
    "driver.before_decide": "the log is about to be asked to decide commit",
    "driver.after_decide": "decided commit, nothing was sent",
    "driver.after_finish": "all acknowledged, before Spark's own commit",
    "delivery.between_commits": "one participant has committed, another has not",
    "delivery.before_commit": "one more participant is about to be told",
    "delivery.before_finish": "all have acknowledged, the log does not say finished",
    "recovery.before_read": "a sweep has begun and has not read the log",
    "recovery.after_read": "it knows what is unfinished, nothing was done",
    "recovery.after_expire": "an attempt is decided abort for its age, nothing is sent",
    "recovery.between_transactions": "one is finished, the next one is not",
    "executor.before_begin": "a task has rows, its branch is not open",
    "executor.mid_invoke": "some of a branch's rows are written",
    "executor.before_pre_commit": "all of them are, nothing was sent",
    "executor.after_first_prepare": "one task has prepared everywhere",
    "executor.after_pre_commit": "a task has voted, its receipt is not out",
    "participant.at_open": "a service starts and looks its tables over",
    "participant.before_prepare": "a branch is claimed, none of it is written",
    "participant.after_prepare": "the branch is durable, the vote was not answered",
    "participant.between_branches": "one branch is committed, one is to come",
    "participant.before_commit": "the commit request has arrived, nothing changed",
    "participant.after_commit": "committed, not yet answered",
    "participant.before_abort": "the abort request has arrived, nothing changed",
    "participant.after_abort": "aborted, not yet answered",
    "outbox.before_call": "a request is next in the queue, the partner knows nothing",
    "outbox.after_call": "the partner has answered, nothing of it is recorded",
}
"""Points at which `tracing_2pc.failpoints` can kill a process, for tests and the
demo: what holds there."""
