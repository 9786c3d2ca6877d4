"""All kinds of findings: the only list, for commands, console, alerts and manual.

A kind is one constant below. Those of a transaction come first, the gravest of them at
the top. `diagnosis.py` and `findings.py` find them. `python -m dashboards.write` writes
the alerts, the runbook's sections and the manual's table from this list.
"""

from __future__ import annotations

from typing import Final

from tracing_2pc.core.states import Severity
from tracing_2pc.inspection.jobs import MISSED
from tracing_2pc.inspection.kind import (
    DEFAULTS,
    SWEEP,
    WATCHED,
    Alert,
    Kind,
    Subject,
)

_EXPLAIN: Final = "`tracing-2pc explain {transaction}` says what is safe"
_FIVE_MINUTES: Final = 300.0

_LOST_OR_DIVERGED: Final = Alert(
    "TpcLostOrDiverged",
    "{n} transaction{s} of {application} {are} {diagnosis} at {participant}",
    "It was decided, and {participant} does not have it, or has done the opposite. The "
    "participants do not agree any more; a person must look.",
    "tpc.diagnoses",
    where="lost|diverged",
    by=(*WATCHED, "diagnosis"),
    severity=Severity.CRITICAL,
    lasts=0,
    meter="participant_lost_or_diverged",
)
_STUCK: Final = Alert(
    "TpcTransactionStuck",
    "{n} transaction{s} of {application} {are} stuck at {participant}",
    "They are not decided after every timeout, or decided and not acknowledged by "
    "{participant}. What they have prepared stays locked, and {application} waits.",
    "tpc.diagnoses",
    where="stuck",
    by=WATCHED,
    meter="participant_stuck",
)
_NOT_APPLIED: Final = Alert(
    "TpcDecidedNotApplied",
    "{participant} has not applied {n} decided commit{s} of {application}",
    "It answers, and still holds them prepared: nobody delivers the decision. Until "
    "somebody does, readers see the other participants ahead of it.",
    "tpc.diagnoses",
    where="decided_not_applied",
    by=WATCHED,
    meter="participant_decided_not_applied",
)
_SLOTS: Final = Alert(
    "TpcPreparedSlotsHigh",
    "{share} of the prepared transactions of {participant}'s server are taken",
    "At max_prepared_transactions its server refuses every further prepare, and each "
    "batch aborts.",
    "tpc.prepared_slots.used",
    0.8,
    "tpc.prepared_slots.max",
    lasts=_FIVE_MINUTES,
)
_OUTBOX_OLD: Final = Alert(
    "TpcOutboxOld",
    "the outbox of {participant} has waited {age} for its partner",
    "What was committed has not reached the partner. It is kept, and sent in order "
    "once the partner answers.",
    "tpc.outbox.oldest_age",
    DEFAULTS.stuck_after,
    meter="outbox_oldest_age",
)
_OUTBOX_STOPPED: Final = Alert(
    "TpcOutboxStopped",
    "the outbox of {participant} has stopped for {n} application{s}",
    "The partner refused more than ten requests in a row, or a relay needs a "
    "person. The rest is kept, and sent when that is settled.",
    "tpc.outbox.stopped",
    severity=Severity.CRITICAL,
    meter="outbox_stopped",
)

_PARTICIPANT_UNREADABLE: Final = Alert(
    "TpcParticipantUnreadable",
    "the watcher cannot read {participant}",
    "For three sweeps it has not got a whole list from it, or its address leads to "
    "another participant. What is in doubt there is not known; what was said before "
    "stays.",
    by=("job", "participant"),
    lasts=120,
    promql="time() - max by (job, participant) (tpc_watcher_last_success_"
    'timestamp_seconds{participant!="log"}) > ' + f"{3 * SWEEP:g}",
    datadog="max(last_5m):diff(max:tpc.watcher.last_success_timestamp"
    "{!participant:log} by {service,participant}) <= 0",
)
_LOG_FAILING: Final = Alert(
    "TpcDecisionLogFailing",
    "the watcher cannot read the decision log",
    "For three sweeps it has not answered whole. Without it nothing is "
    "decided, nothing recovered, and nothing said to be wrong.",
    by=("job",),
    severity=Severity.CRITICAL,
    lasts=60,
    promql="time() - max by (job) (tpc_watcher_last_success_timestamp_seconds"
    '{participant="log"}) > ' + f"{3 * SWEEP:g}",
    datadog="max(last_5m):diff(max:tpc.watcher.last_success_timestamp"
    "{participant:log} by {service}) <= 0",
)

# --- of a transaction ----------------------------------------------------------------

DIVERGED: Final = Kind(
    "diverged",
    Subject.DIAGNOSIS,
    "a participant did the opposite of the decision",
    Severity.CRITICAL,
    "a participant went against the decision",
    _EXPLAIN,
    alerts=(_LOST_OR_DIVERGED,),
)
LOST: Final = Kind(
    "lost",
    Subject.DIAGNOSIS,
    "a participant knows nothing of what it voted for, or a stream has passed a batch "
    "that is not committed",
    Severity.CRITICAL,
    "rows are lost",
    _EXPLAIN,
    alerts=(_LOST_OR_DIVERGED,),
)
DECIDED_NOT_APPLIED: Final = Kind(
    "decided_not_applied",
    Subject.DIAGNOSIS,
    "decided commit, and still prepared at a participant that answers",
    words="decided, and not applied",
    cure=_EXPLAIN,
    alerts=(
        _NOT_APPLIED,
        _NOT_APPLIED.critical(older=DEFAULTS.stuck_critical, lasts=0, meter=""),
    ),
)
ORPHANED: Final = Kind(
    "orphaned",
    Subject.DIAGNOSIS,
    "prepared for `orphan_after`, and no record in this log can finish it",
    words="prepared, and no record can finish it",
    cure=_EXPLAIN,
    alerts=(
        Alert(
            "TpcOrphaned",
            "{participant} holds {n} prepared transaction{s} of {application} that no "
            "record can finish",
            "No unfinished record in this decision log is theirs. Nothing aborts them "
            "by itself: another log may own them.",
            "tpc.diagnoses",
            where="orphaned",
            by=WATCHED,
            meter="participant_orphaned",
        ),
    ),
)
STUCK: Final = Kind(
    "stuck",
    Subject.DIAGNOSIS,
    "undecided after every timeout, or decided and not acknowledged, for "
    "`stuck_after`; critical from `stuck_critical` on",
    words="stuck",
    cure=_EXPLAIN,
    alerts=(
        _STUCK,
        _STUCK.critical(older=DEFAULTS.stuck_critical, lasts=0, minutes=10),
    ),
)
QUARANTINED: Final = Kind(
    "quarantined",
    Subject.TRANSACTION,
    "an answer contradicts the decision: a person must decide",
    Severity.CRITICAL,
    "quarantined: a person must decide",
    _EXPLAIN,
    alerts=(
        Alert(
            "TpcQuarantined",
            "{n} transaction{s} of {application} {are} quarantined",
            "A participant's answer contradicts the decision. {application} has "
            "stopped, and begins nothing until a person has resolved them.",
            "tpc.quarantined_transactions",
            by=("job", "application"),
            severity=Severity.CRITICAL,
            lasts=1.5 * SWEEP,
            meter="quarantined",
            note="Longer than a sweep: what is lost is quarantined first, and is one "
            "page.",
        ),
    ),
)
HELD_BACK: Final = Kind(
    "held_back",
    Subject.TRANSACTION,
    "an application waits for a participant that has not acknowledged a commit",
    words="holds its application back",
    cure=_EXPLAIN,
    events=("waiting", ""),
    alerts=(
        Alert(
            "TpcDecisionPending",
            "{participant} has not acknowledged a commit of {application}",
            "It was decided {age} before the watcher last looked, and is told again "
            "and again. Until {participant} acknowledges it, {application} begins no "
            "batch.",
            "tpc.oldest_pending_age",
            DEFAULTS.safety_interval,
            by=WATCHED,
            lasts=0,
            note="Long before it is stuck; its age is that of the decision, however "
            "long the batch.",
        ),
    ),
)
NOT_TOLD: Final = Kind(
    "not_told",
    Subject.TRANSACTION,
    "an own sink could not be told all of an abort",
    words="not told all of it",
    cure=_EXPLAIN,
)

# --- of a job ------------------------------------------------------------------------

_JOB_DOWN: Final = Alert(
    "TpcJobDown",
    "the job of {application} has ended {age} ago, and nobody has stopped it",
    "It has failed, or its driver is not seen any more. Until it is started, nothing "
    "of {application} is written; what is decided stays in the log, and is delivered "
    "then, or by tracing-2pc recover.",
    "tpc.job.down_age",
    MISSED,
    by=("job", "application"),
    severity=Severity.CRITICAL,
    lasts=60,
    meter="job_down_age",
    note="After an outage of the log a driver needs some seconds to be seen again.",
)
JOB_FAILED: Final = Kind(
    "job_failed",
    Subject.JOB,
    "a job has ended by an error, and no run of it has begun since",
    Severity.CRITICAL,
    is_bare=True,
    cure="do what that says, then start the job: it goes on where the log says; "
    "`tracing-2pc retire` if it is not to run any more",
    alerts=(_JOB_DOWN,),
)
JOB_GONE: Final = Kind(
    "job_gone",
    Subject.JOB,
    "a driver has not reported for 30 s, and did not say that it ends; critical from "
    "2 min on",
    is_bare=True,
    cure="start the job: it goes on where the log says; `tracing-2pc retire` if it is "
    "not to run any more",
    alerts=(_JOB_DOWN,),
)
TWO_DRIVERS: Final = Kind(
    "two_drivers",
    Subject.JOB,
    "a driver of an earlier run is still seen: its batches are refused",
    is_bare=True,
    cure="end that process: only the newest run may begin batches",
)
ROWS_REJECTED: Final = Kind(
    "rows_rejected",
    Subject.JOB,
    "participants have refused rows of a job within the last hour: they are where its "
    "`rejects` is",
    is_bare=True,
    cure="look at them there, with their reasons; what is mended is written by an "
    "application of its own",
    alerts=(
        Alert(
            "TpcRowsRejected",
            "rows of {job} are rejected",
            "Participants have refused rows within the last hour. Each is kept by the "
            "participant of rejects, with who refused it and why; the others of its "
            "batch have landed. More than rejects_at_most in one batch end the query.",
            by=("job",),
            promql="sum by (job) (increase(tpc_rows_rejected_total[1h])) > 0\n",
            datadog="sum(last_1h):sum:tpc.rows.rejected{*} by {service}.as_count() > 0",
        ),
    ),
)

# --- of what is read -----------------------------------------------------------------

UNREADABLE: Final = Kind(
    "unreadable",
    Subject.SOURCE,
    "a participant, its outbox, or the log, that cannot be read or not whole; a clock "
    "that was set back",
    is_bare=True,
    events=("unreadable", "readable"),
    alerts=(
        _PARTICIPANT_UNREADABLE,
        _LOG_FAILING,
    ),
)
LOG_READ_ONLY: Final = Kind(
    "read_only",
    Subject.SOURCE,
    "the decision log is read, and its database takes no writes",
    Severity.CRITICAL,
    is_bare=True,
    cure="do what it says: jobs go on by themselves, or are to be started if they have "
    "ended meanwhile",
    alerts=(_LOG_FAILING,),
)
FAULT: Final = Kind(
    "fault",
    Subject.SOURCE,
    "settings, the log's durability, or what does not fit at [a relay's broker]"
    "(kafka.md#what-to-set-at-the-broker); `check` only, and what "
    "[`check --deep`](#deeper) finds",
    is_bare=True,
)
CLOCK_DIFFERS: Final = Kind(
    "clock_differs",
    Subject.SOURCE,
    "a participant's clock differs from this machine's by more than a second",
    cure="synchronise the clocks (NTP)",
)
MISDIRECTED: Final = Kind(
    "misdirected",
    Subject.SOURCE,
    "a participant's address leads to another one",
    cure="mend the addresses in `participants`: here, and where the job names them",
    alerts=(_PARTICIPANT_UNREADABLE,),
)
SLOTS: Final = Kind(
    "slots",
    Subject.GAUGE,
    "nearly all prepared transactions of a participant's database server are in use",
    words="{value} of {of} prepared transactions are in use: without a free one it "
    "votes abort",
    cure="finish what is in doubt, or raise max_prepared_transactions",
    alerts=(_SLOTS, _SLOTS.critical(above=0.95, lasts=SWEEP)),
)
IN_DOUBT_LONG: Final = Kind(
    "in_doubt_long",
    Subject.GAUGE,
    "a participant has held a branch prepared for more than an hour, whichever log it "
    "is of",
    words="a branch has been in doubt here{age}: it keeps its locks, and a database of "
    "PostgreSQL cannot vacuum past it",
    cure="`tracing-2pc ls --unfinished` names it where this log, or our token, may "
    "know; else whoever runs its job must finish it",
    alerts=(
        Alert(
            "TpcInDoubtLong",
            "{participant} has held a branch in doubt for {age}",
            "No watcher says why: it is of a log that none watches, or of a batch "
            "that may still be written. It keeps its locks, and PostgreSQL cannot "
            "vacuum past it.",
            "tpc.oldest_in_doubt_age",
            3600,
            promql="""\
max by (participant) (tpc_oldest_in_doubt_age_seconds) > 3600
unless on (participant) max by (participant) (tpc:diagnoses) > 0
""",
            meter="oldest_in_doubt_age",
            note="Where a diagnosis names the participant, its alert has said it "
            "before.",
        ),
    ),
)

# --- of an outbox --------------------------------------------------------------------

BACKLOG: Final = Kind(
    "backlog",
    Subject.QUEUE,
    "the oldest request of an outbox waits for longer than `stuck_after`; critical "
    "from `stuck_critical` on",
    cure="start the {partner}, or mend its address or token: the log of {participant} "
    "says which, and why; all is kept, and sent in order by itself",
    alerts=(_OUTBOX_OLD, _OUTBOX_OLD.critical(above=DEFAULTS.stuck_critical, meter="")),
)
OUTBOX_STOPPED: Final = Kind(
    "outbox_stopped",
    Subject.QUEUE,
    "an outbox sends nothing more of an application: its partner refused more than ten "
    "requests in a row",
    Severity.CRITICAL,
    cure="agree with the partner, whose answers `tracing-2pc outbox ls` has: the next "
    "request is tried each minute, and once it is taken the rest follows",
    alerts=(_OUTBOX_STOPPED,),
)
REFUSED_REQUESTS: Final = Kind(
    "refused_requests",
    Subject.REQUESTS,
    "requests that an outbox's partner did not take",
    words="its partner did not take what was committed",
    cure="agree with the partner, then `tracing-2pc outbox again`, or `drop`: the "
    "other requests go on",
    alerts=(
        Alert(
            "TpcOutboxRefused",
            "the outbox of {participant} has set {n} request{s} aside",
            "The partner refused them, or did not take them alone, and later ones are "
            "sent. The partner lacks what they say until a person has them sent "
            "again, or drops them: tracing-2pc outbox ls.",
            "tpc.outbox.quarantined",
            meter="outbox_quarantined",
        ),
    ),
)
RELAY_STOPPED: Final = Kind(
    "relay_stopped",
    Subject.REQUESTS,
    "a relay has stopped: [a person must decide](kafka.md#when-it-cannot-publish)",
    Severity.CRITICAL,
    "its relay has stopped",
    "look at the end of the topic, then `tracing-2pc outbox sent`, or `send`",
    alerts=(_OUTBOX_STOPPED,),
)
READERS_HELD_BACK: Final = Kind(
    "readers_held_back",
    Subject.REQUESTS,
    "readers do not see what a relay has published",
    Severity.CRITICAL,
    "readers do not see what is published",
    "end the transaction that is open there; never abort one of `tpc-…`",
    alerts=(
        Alert(
            "TpcReadersHeldBack",
            "readers of what {participant} has published are held back",
            "It is committed, and the broker has taken it. What is published after it "
            "is not seen either: tracing-2pc outbox ls.",
            "tpc.relay.hidden_age",
            severity=Severity.CRITICAL,
            meter="relay_hidden_age",
        ),
    ),
)
POSITION_UNREADABLE: Final = Kind(
    "position_unreadable",
    Subject.REQUESTS,
    "a relay can publish nothing now: its broker does not say what is published",
    words="nothing is published",
    cure="start the broker, or mend what it says; then it goes on by itself",
    alerts=(
        Alert(
            "TpcPositionUnreadable",
            "{participant} has not been able to publish for {age}",
            "The broker does not say what is published. What is committed is kept, and "
            "published once it does.",
            "tpc.relay.unreadable_age",
            above=_FIVE_MINUTES,
            meter="relay_unreadable_age",
        ),
    ),
)
NOT_PUBLISHED: Final = Kind(
    "not_published",
    Subject.REQUESTS,
    "a relay's broker refuses a transaction, or does not take it in time",
    words="the application waits",
    cure="mend what it says: it is tried again; at once by `tracing-2pc outbox again`",
    alerts=(
        Alert(
            "TpcNotPublished",
            "the broker of {participant} does not take what {n} application{s} {have} "
            "committed",
            "It is kept, and tried again. What the application commits after it waits "
            "too; others go on: tracing-2pc outbox ls.",
            "tpc.relay.refused",
            lasts=_FIVE_MINUTES,
            meter="relay_refused",
        ),
    ),
)

# --- what only metrics tell ----------------------------------------------------------

EVENTS_NOT_READ: Final = Kind(
    "events_not_read",
    Subject.METRICS,
    "an event has waited in a gateway's inbox for a quarter of an hour",
    alerts=(
        Alert(
            "TpcEventsNotRead",
            "an event has waited in the inbox of {participant} for {age}",
            "A reader has stopped, or is too slow. Events are kept until every reader "
            "has committed them: tracing-2pc inbox ls.",
            "tpc.inbox.oldest_age",
            900,
            lasts=_FIVE_MINUTES,
            meter="inbox_oldest_age",
        ),
    ),
)
COMMITS_FAILING: Final = Kind(
    "commits_failing",
    Subject.METRICS,
    "most requests to commit are refused by a participant, or find nobody",
    alerts=(
        Alert(
            "TpcCommitsFailing",
            "{share} of the commits at {participant} fail",
            "More than half of the requests to commit were refused, or found nobody. "
            "Each batch waits for its commits.",
            above=0.5,
            lasts=_FIVE_MINUTES,
            promql="""\
sum by (participant) (rate(tpc_commit_attempts_total{result!="ok"}[5m]))
  / sum by (participant) (rate(tpc_commit_attempts_total[5m])) > 0.5
""",
            datadog="sum(last_5m):sum:tpc.commit.attempts{!result:ok} by "
            "{participant}.as_count() / sum:tpc.commit.attempts{*} by "
            "{participant}.as_count() > 0.5",
        ),
        Alert(
            "TpcCommitsFailing",
            "no commit at {participant} succeeds",
            "Every request to commit of the last 15 min was refused, or found nobody. "
            "Each batch waits for its commits.",
            severity=Severity.CRITICAL,
            lasts=_FIVE_MINUTES,
            promql="""\
sum by (participant) (rate(tpc_commit_attempts_total{result!="ok"}[15m])) > 0
unless sum by (participant) (rate(tpc_commit_attempts_total{result="ok"}[15m])) > 0
""",
            datadog=None,  # the other one comes first, and says as much
        ),
    ),
)
NOTHING_COMMITS: Final = Kind(
    "nothing_commits",
    Subject.METRICS,
    "batches are prepared at a participant, and none is committed",
    Severity.CRITICAL,
    alerts=(
        Alert(
            "TpcNothingCommits",
            "{participant} is asked to prepare, and nothing is committed",
            "Batches begin, and for longer than the transaction timeout (15 min) none "
            "of them was committed there.",
            severity=Severity.CRITICAL,
            lasts=_FIVE_MINUTES,
            promql="""\
sum by (participant) (increase(tpc_phase_duration_seconds_count{phase="prepare", result="ok"}[20m])) > 0
unless sum by (participant) (increase(tpc_phase_duration_seconds_count{phase="commit", result="ok"}[20m])) > 0
unless count by (participant) (
  tpc_phase_duration_seconds_count{phase="commit", result="ok"} > 0
  unless tpc_phase_duration_seconds_count{phase="commit", result="ok"} offset 20m
)
""",  # noqa: E501
            datadog=None,  # a query has no `unless`
            note="A process's first commit begins a series, which increase() does not "
            "see.",
        ),
    ),
)
LOG_SLOW: Final = Kind(
    "log_slow",
    Subject.METRICS,
    "the decision log takes more than a second for one decision in a hundred",
    alerts=(
        Alert(
            "TpcDecisionLogFailing",
            "the decision log of {job} takes {age} to decide",
            "One decision in a hundred takes longer than that. Each batch waits for "
            "its decision to be on disk.",
            above=1,
            by=("job",),
            lasts=_FIVE_MINUTES,
            promql="""\
histogram_quantile(0.99, sum by (job, le) (rate(tpc_decision_log_write_seconds_bucket[10m]))) > 1
and on (job) (
  sum by (job) (increase(tpc_decision_log_write_seconds_bucket{le="+Inf"}[10m]))
  - sum by (job) (increase(tpc_decision_log_write_seconds_bucket{le=~"1|1[.]0"}[10m]))
) > 2.5
""",  # noqa: E501
            datadog="min(last_10m):p99:tpc.decision_log.write{*} by {service} > 1",
            note="Three at least: where batches are rare, a single one is more than "
            "one in a hundred.",
        ),
    ),
)
WATCHER_SILENT: Final = Kind(
    "watcher_silent",
    Subject.METRICS,
    "no watcher of a log reports",
    Severity.CRITICAL,
    alerts=(
        Alert(
            "TpcWatcherSilent",
            "no watcher has looked around for three sweeps",
            "It does not run, cannot be scraped, or can read nobody. Until it is back, "
            "the other alerts about single transactions repeat its last word.",
            by=("job",),
            severity=Severity.CRITICAL,
            lasts=120,
            promql=f"""\
absent_over_time(tpc_watcher_last_success_timestamp_seconds[1d])
or tpc:watcher_gone
or time() - max by (job) (tpc_watcher_last_success_timestamp_seconds) > {3 * SWEEP:g}
""",
            datadog="max(last_5m):diff(max:tpc.watcher.last_success_timestamp{*} by "
            "{service}) <= 0",
        ),
    ),
)
COLLECTOR_DOWN: Final = Kind(
    "collector_down",
    Subject.METRICS,
    "the collector of counters, histograms and traces cannot be scraped",
    alerts=(
        Alert(
            "TpcCollectorDown",
            "the collector at {instance} cannot be scraped",
            "Counters and histograms come through it, and traces: no alert about "
            "failing commits, or about a log that is slow, can fire meanwhile.",
            by=("job", "instance"),
            lasts=120,
            promql='min by (job, instance) (up{job="tracing-2pc-otlp"}) == 0',
            datadog=None,  # the vendor's own collector has its own monitor
        ),
    ),
)
TELEMETRY_DROPPED: Final = Kind(
    "telemetry_dropped",
    Subject.METRICS,
    "a process loses spans",
    alerts=(
        Alert(
            "TpcTelemetryDropped",
            "{job} loses spans",
            "Its queue is full, or its collector does not take them: traces have "
            "holes. Transactions go on without them.",
            by=("job",),
            lasts=360,
            promql="sum by (job) (increase(tpc_telemetry_dropped_total[5m])) > 0",
            datadog="sum(last_10m):sum:tpc.telemetry.dropped{*} by "
            "{service}.as_count() > 0",
            note="Two windows one after the other: a collector's restart loses some, "
            "once.",
        ),
    ),
)

KINDS: Final = tuple(k for k in tuple(globals().values()) if isinstance(k, Kind))
"""All of the above, in their order."""
