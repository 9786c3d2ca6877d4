"""What the Grafana dashboard shows: rows of panels, and their queries."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from dashboards.write import ALERTS, PLAIN, sentence
from tracing_2pc.inspection.kind import Alert

HERE: Final = '{job=~"$job", participant=~"$participant"}'
ANSWERED: Final = '{job=~"$job", participant=~"$participant", result="ok"}'
JOB: Final = '{job=~"$job"}'


class Query(NamedTuple):
    """A PromQL expression, and what its series are called."""

    expr: str
    legend: str
    exemplar: bool = False


class Panel(NamedTuple):
    """One panel: lines, a number that turns red at `red`, or a table.

    Numbers and tables are of now: where a series has ended they say so.
    """

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: Literal["timeseries", "stat", "table"] = "timeseries"
    red: float | None = None


def diagnosed(which: str, by: str = "participant") -> str:
    """Count what the watcher found; of several watchers of one log, once."""
    inside = f'job=~"$job", participant=~"$participant", diagnosis=~"{which}"'
    each = "job, application, participant, diagnosis"
    return f"sum by ({by}) (max by ({each}) (tpc_diagnoses{{{inside}}}))"


def wrong(alert: Alert) -> Panel:
    """Show how many transactions have a diagnosis that is alerted on, as one number."""
    title = alert.where.replace("|", " or ").replace("_", " ").capitalize()
    most = f"sum({diagnosed(alert.where, 'job, participant, diagnosis')})"
    query = Query(most, title.lower())
    description = sentence(alert.description, alert, PLAIN)
    return Panel(title, description, "none", (query,), "stat", red=1)


WRONG: Final = tuple(wrong(a) for a in ALERTS if a.where and not a.older)


def quantiles(metric: str, inside: str, by: str, legend: str) -> tuple[Query, ...]:
    """Return the middle and the end of a histogram, by some labels."""
    rate = f"rate({metric}_bucket{inside}[$__rate_interval])"
    summed = f"sum by ({', '.join(filter(None, [by, 'le']))}) ({rate})"
    return tuple(
        Query(
            f"histogram_quantile({q}, {summed})",
            f"{legend} {q:.0%}".strip(),
            exemplar=True,
        )
        for q in (0.5, 0.95, 0.99)
    )


def rates(metric: str, inside: str, by: str, legend: str) -> tuple[Query, ...]:
    """Return how often something happened in a second, by some labels."""
    rate = f"rate({metric}{inside}[$__rate_interval])"
    return (Query(f"sum by ({by}) ({rate})", legend),)


def greatest(metric: str, inside: str, by: str) -> tuple[Query, ...]:
    """Return a gauge; processes that tell the same one count once."""
    return (Query(f"max by ({by}) ({metric}{inside})", f"{{{{{by}}}}}"),)


ROWS: Final[dict[str, tuple[Panel, ...]]] = {
    "Whether anything is wrong": (
        Panel(
            "Watcher",
            "Seconds since the watcher of each decision log last read anything. When "
            "it is red, the numbers below are missing or old.",
            "s",
            (
                Query(
                    "time() - max by (job) (max_over_time("
                    f"tpc_watcher_last_success_timestamp_seconds{JOB}[1d]))",
                    "{{job}}",
                ),
            ),
            "stat",
            red=90,
        ),
        Panel(
            "Alerts that fire",
            "Of the rules beside this dashboard; each has a section in the runbook.",
            "none",
            (
                Query(
                    "max by (alertname, severity, job, application, participant) "
                    '(ALERTS{alertname=~"Tpc.+", alertstate="firing"})',
                    "",
                ),
            ),
            "table",
        ),
    ),
    "What is in doubt, and for how long": (
        *WRONG,
        Panel(
            "Quarantined",
            "Transactions that a person must look at; their application waits.",
            "none",
            (
                Query(
                    "sum(max by (job, application) "
                    f"(tpc_quarantined_transactions{JOB}))",
                    "now",
                ),
            ),
            "stat",
            red=1,
        ),
        Panel(
            "Jobs that are down",
            "Since a job failed, or since its driver was last seen; 0 while it runs, "
            "and after it was stopped.",
            "s",
            (
                Query(
                    f"max by (application) (tpc_job_down_age_seconds{JOB})",
                    "{{application}}",
                ),
            ),
        ),
        Panel(
            "Oldest unfinished",
            "Age of the oldest transaction that the log has not closed.",
            "s",
            (Query(f"max(tpc_oldest_unfinished_age_seconds{JOB})", "age"),),
            "stat",
            red=900,
        ),
        Panel(
            "Unfinished, by state",
            "Transactions that the log has not closed.",
            "none",
            greatest("tpc_unfinished_transactions", JOB, "state"),
        ),
        Panel(
            "Oldest unfinished, by state",
            "Age of the oldest of them. It falls back when one is finished.",
            "s",
            greatest("tpc_oldest_unfinished_age_seconds", JOB, "state"),
        ),
        Panel(
            "Time in doubt",
            "At the participants, from a transaction's first prepared branch to its "
            "decision: how long it held its locks.",
            "s",
            quantiles("tpc_in_doubt_duration_seconds", JOB, "", ""),
        ),
    ),
    "Who holds it up": (
        Panel(
            "What is wrong, and where",
            "Every diagnosis of the watcher, by participant.",
            "none",
            (
                Query(
                    diagnosed(".+", "participant, diagnosis"),
                    "{{diagnosis}} at {{participant}}",
                ),
            ),
        ),
        Panel(
            "How long it has been wrong",
            "Since the last step of the oldest transaction of each diagnosis. Empty "
            "where nothing is wrong.",
            "s",
            (
                Query(
                    "max by (application, diagnosis, participant) "
                    f"(tpc_oldest_diagnosed_age_seconds{HERE})",
                    "{{application}} {{diagnosis}} at {{participant}}",
                ),
            ),
        ),
        Panel(
            "Commits not acknowledged",
            "Since the decision, when the watcher last read the log: from 10 s on. "
            "Empty where every commit is acknowledged.",
            "s",
            (
                Query(
                    "max by (application, participant) "
                    f"(tpc_oldest_pending_age_seconds{HERE})",
                    "{{application}} at {{participant}}",
                ),
            ),
        ),
        Panel(
            "Branches in doubt",
            "What each participant holds prepared now, and what is being written.",
            "none",
            (
                *greatest("tpc_in_doubt_branches", HERE, "participant"),
                Query(
                    f"max by (participant) (tpc_uploads{HERE})",
                    "{{participant}}: being written",
                ),
            ),
        ),
        Panel(
            "Oldest branch in doubt",
            "By the participant's own clock. Nobody's commit is waited for so long "
            "unless something is wrong.",
            "s",
            greatest("tpc_oldest_in_doubt_age_seconds", HERE, "participant"),
        ),
    ),
    "Outcomes": (
        Panel(
            "Decisions",
            "Transactions decided in a second, by outcome.",
            "ops",
            rates("tpc_transactions_total", JOB, "outcome", "{{outcome}}"),
        ),
        Panel(
            "Aborts, by cause",
            "Why abort was decided. Superseded is a restart of the query.",
            "ops",
            rates("tpc_aborts_total", JOB, "cause", "{{cause}}"),
        ),
        Panel(
            "Rejected rows",
            "Rows in a second that participants refused, kept by that of rejects.",
            "ops",
            rates("tpc_rows_rejected_total", JOB, "job", "{{job}}"),
        ),
        Panel(
            "Requests, by result",
            "Prepares, commits and aborts in a second, as participants and drivers "
            "saw them.",
            "reqps",
            rates(
                "tpc_phase_duration_seconds_count",
                HERE,
                "phase, result",
                "{{phase}} {{result}}",
            ),
        ),
    ),
    "Phase latencies": (
        Panel(
            "Requests, by phase",
            "How long a participant took, or was waited for, where it answered. A dot "
            "opens its trace.",
            "s",
            quantiles("tpc_phase_duration_seconds", ANSWERED, "phase", "{{phase}}"),
        ),
        Panel(
            "95 %, by participant",
            "The slowest participant is how long a batch waits.",
            "s",
            quantiles(
                "tpc_phase_duration_seconds",
                ANSWERED,
                "participant, phase",
                "{{phase}} at {{participant}}",
            )[1:2],
        ),
        Panel(
            "Sink's phases, as spans",
            "From the spans, by the collector. A dot is one: it opens its trace.",
            "ms",
            (
                Query(
                    "histogram_quantile(0.95, sum by (tpc_phase, le) (rate("
                    'traces_span_metrics_duration_milliseconds_bucket{tpc_phase!=""}'
                    "[$__rate_interval])))",
                    "{{tpc_phase}}",
                    exemplar=True,
                ),
            ),
        ),
    ),
    "Recovery": (
        Panel(
            "Commits told, by result",
            "Everything but ok is told again; it is never given up.",
            "reqps",
            rates("tpc_commit_attempts_total", HERE, "result", "{{result}}"),
        ),
        Panel(
            "Commits that failed, by participant",
            "Refused, or nobody was there.",
            "reqps",
            rates(
                "tpc_commit_attempts_total",
                '{job=~"$job", participant=~"$participant", result!="ok"}',
                "participant",
                "{{participant}}",
            ),
        ),
        Panel(
            "Decided by hand",
            "What persons did about quarantined transactions and orphans.",
            "none",
            (
                Query(
                    f"sum by (action) (increase(tpc_operator_actions_total{JOB}"
                    "[$__rate_interval]))",
                    "{{action}}",
                ),
            ),
        ),
    ),
    "Outbox, and prepared transactions": (
        Panel(
            "Outbox",
            "Requests that are committed and not confirmed by the partner, those that "
            "were set aside, and applications for which it has stopped.",
            "none",
            (
                Query(
                    f"max by (participant) (tpc_outbox_backlog{HERE})",
                    "{{participant}} to be sent",
                ),
                Query(
                    f"max by (participant) (tpc_outbox_quarantined{HERE})",
                    "{{participant}} set aside",
                ),
                Query(
                    f"max by (participant) (tpc_outbox_stopped{HERE})",
                    "{{participant}} stopped",
                ),
            ),
        ),
        Panel(
            "Oldest in the outbox",
            "How far behind the partner is.",
            "s",
            greatest("tpc_outbox_oldest_age_seconds", HERE, "participant"),
        ),
        Panel(
            "Relay: publications",
            "The number of the last that the broker has taken, those that readers "
            "cannot pass yet, and applications whose transactions it refuses.",
            "none",
            (
                Query(
                    f"max by (participant) (tpc_relay_position{HERE})",
                    "{{participant}} position",
                ),
                Query(
                    f"max by (participant) (tpc_relay_open{HERE})",
                    "{{participant}} open",
                ),
                Query(
                    f"max by (participant) (tpc_relay_refused{HERE})",
                    "{{participant}} refused",
                ),
            ),
        ),
        Panel(
            "Relay: for how long",
            "Readers do not see what is published; it cannot be read what is.",
            "s",
            (
                Query(
                    f"max by (participant) (tpc_relay_hidden_age_seconds{HERE})",
                    "{{participant}} hidden",
                ),
                Query(
                    f"max by (participant) (tpc_relay_unreadable_age_seconds{HERE})",
                    "{{participant}} unreadable",
                ),
            ),
        ),
        Panel(
            "Inbox: events not read",
            "Events that the slowest reader has not committed yet.",
            "none",
            greatest("tpc_inbox_backlog", HERE, "participant"),
        ),
        Panel(
            "Inbox: age of the oldest",
            "How long the oldest of them has waited.",
            "s",
            greatest("tpc_inbox_oldest_age_seconds", HERE, "participant"),
        ),
        Panel(
            "Inbox: events, by answer",
            "What producers sent. Known is a repeat; malformed and conflict are to be "
            "mended where they come from.",
            "ops",
            rates("tpc_inbox_events_total", JOB, "answer", "{{answer}}"),
        ),
        Panel(
            "Prepared slots taken",
            "Of max_prepared_transactions. At 100 % every further prepare is refused.",
            "percentunit",
            (
                Query(
                    f"max by (participant) (tpc_prepared_slots_used{HERE} "
                    f"/ tpc_prepared_slots_max{HERE})",
                    "{{participant}}",
                ),
            ),
        ),
    ),
    "Decision log": (
        Panel(
            "Time to decide",
            "From asking the log to the decision on disk: the commit point.",
            "s",
            quantiles("tpc_decision_log_write_seconds", JOB, "", ""),
        ),
        Panel(
            "Decisions written",
            "Decisions that the log was asked for, in a second.",
            "ops",
            rates("tpc_decision_log_write_seconds_count", JOB, "job", "{{job}}"),
        ),
    ),
    "Watcher": (
        Panel(
            "Since it last read",
            "Seconds since the watcher had a whole list of each participant, and the "
            "log. Nothing is said of whom it cannot read.",
            "s",
            (
                Query(
                    "time() - max by (participant) "
                    f"(tpc_watcher_last_success_timestamp_seconds{JOB})",
                    "{{participant}}",
                ),
            ),
        ),
        Panel(
            "Spans lost",
            "A queue was full, or nobody took them. Work goes on without them.",
            "ops",
            rates("tpc_telemetry_dropped_total", JOB, "job", "{{job}}"),
        ),
        Panel(
            "Headers not read",
            "Trace headers that were as if absent: somebody's trace is cut there.",
            "ops",
            rates("tpc_propagation_rejected_total", JOB, "header", "{{header}}"),
        ),
    ),
}
