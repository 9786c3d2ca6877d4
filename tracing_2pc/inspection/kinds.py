"""What can be wrong: the only list of it, for every command and the console.

A kind is one constant below. The gravest of what can be wrong with a transaction comes
first. `diagnosis.py` and `findings.py` find them.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Final

from tracing_2pc.core.states import Severity


class Subject(enum.Enum):
    """What a finding of a kind is about."""

    DIAGNOSIS = "a transaction, and a verdict says what is safe"
    TRANSACTION = "a transaction, by its record alone"
    SOURCE = "a participant, the log, a clock or the settings"
    QUEUE = "all that an outbox has to send, of whichever application"
    REQUESTS = "requests or transactions of one application at an outbox"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """One thing that can be wrong, in the words of every face."""

    name: str  # as JSON, metrics and the manual call it
    subject: Subject
    seen: str  # what was seen, for the manual's table
    severity: Severity = Severity.WARNING  # at first: age may make it critical
    words: str = (
        ""  # of a transaction: why it is in a list; of `REQUESTS`: why they wait
    )
    cure: str = (
        ""  # with fields that are filled in; empty where each finding has its own
    )
    # What `tracing-2pc watch` begins a line with, found and gone; empty for no line.
    events: tuple[str, str] = ("found", "gone")

    def __str__(self) -> str:
        return self.name

    @property
    def is_at_outbox(self) -> bool:
        """Whether it is committed, and has not gone out: the log waits for nothing."""
        return self.subject in (Subject.QUEUE, Subject.REQUESTS)

    @property
    def is_grave(self) -> bool:
        """Whether no waiting mends it: rows are not where the decision says."""
        is_diagnosis = self.subject is Subject.DIAGNOSIS
        return is_diagnosis and self.severity is Severity.CRITICAL


_EXPLAIN: Final = "`tracing-2pc explain {transaction}` says what is safe"

# --- of a transaction ----------------------------------------------------------------

DIVERGED: Final = Kind(
    "diverged",
    Subject.DIAGNOSIS,
    "a participant did the opposite of the decision",
    Severity.CRITICAL,
    "a participant went against the decision",
    _EXPLAIN,
)
LOST: Final = Kind(
    "lost",
    Subject.DIAGNOSIS,
    "a participant knows nothing of what it voted for, or a stream has passed a batch "
    "that is not committed",
    Severity.CRITICAL,
    "rows are lost",
    _EXPLAIN,
)
DECIDED_NOT_APPLIED: Final = Kind(
    "decided_not_applied",
    Subject.DIAGNOSIS,
    "decided commit, and still prepared at a participant that answers",
    words="decided, and not applied",
    cure=_EXPLAIN,
)
ORPHANED: Final = Kind(
    "orphaned",
    Subject.DIAGNOSIS,
    "prepared for `orphan_after`, and no record in this log can finish it",
    words="prepared, and no record can finish it",
    cure=_EXPLAIN,
)
STUCK: Final = Kind(
    "stuck",
    Subject.DIAGNOSIS,
    "undecided after every timeout, or decided and not acknowledged, for "
    "`stuck_after`; critical from `stuck_critical` on",
    words="stuck",
    cure=_EXPLAIN,
)
QUARANTINED: Final = Kind(
    "quarantined",
    Subject.TRANSACTION,
    "an answer contradicts the decision: a person must decide",
    Severity.CRITICAL,
    "quarantined: a person must decide",
    _EXPLAIN,
)
HELD_BACK: Final = Kind(
    "held_back",
    Subject.TRANSACTION,
    "an application waits for a participant that has not acknowledged a commit",
    words="holds its application back",
    cure=_EXPLAIN,
    events=("waiting", ""),
)
NOT_TOLD: Final = Kind(
    "not_told",
    Subject.TRANSACTION,
    "an own sink could not be told all of an abort",
    words="not told all of it",
    cure=_EXPLAIN,
)

# --- of what is read -----------------------------------------------------------------

UNREADABLE: Final = Kind(
    "unreadable",
    Subject.SOURCE,
    "a participant, its outbox, or the log, that cannot be read or not whole; a clock "
    "that was set back",
    events=("unreadable", "readable"),
)
FAULT: Final = Kind(
    "fault",
    Subject.SOURCE,
    "settings, the log's durability, or what does not fit at [a relay's broker]"
    "(kafka.md#what-to-set-at-the-broker); `check` only, and what "
    "[`check --deep`](#deeper) finds",
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
)
SLOTS: Final = Kind(
    "slots",
    Subject.SOURCE,
    "nearly all prepared transactions of a participant's database server are in use",
    cure="finish what is in doubt, or raise max_prepared_transactions",
)

# --- of an outbox --------------------------------------------------------------------

BACKLOG: Final = Kind(
    "backlog",
    Subject.QUEUE,
    "the oldest request of an outbox waits for longer than `stuck_after`; critical "
    "from `stuck_critical` on",
    cure="start the {partner}, or mend its address or token: the log of {participant} "
    "says which, and why; all is kept, and sent in order by itself",
)
OUTBOX_STOPPED: Final = Kind(
    "outbox_stopped",
    Subject.QUEUE,
    "an outbox sends nothing more of an application: its partner refused more than ten "
    "requests in a row",
    Severity.CRITICAL,
    cure="agree with the partner, whose answers `tracing-2pc outbox ls` has: the next "
    "request is tried each minute, and once it is taken the rest follows",
)
REFUSED_REQUESTS: Final = Kind(
    "refused_requests",
    Subject.REQUESTS,
    "requests that an outbox's partner did not take",
    words="its partner did not take what was committed",
    cure="agree with the partner, then `tracing-2pc outbox again`, or `drop`: the "
    "other requests go on",
)
RELAY_STOPPED: Final = Kind(
    "relay_stopped",
    Subject.REQUESTS,
    "a relay has stopped: [a person must decide](kafka.md#when-it-cannot-publish)",
    Severity.CRITICAL,
    "its relay has stopped",
    "look at the end of the topic, then `tracing-2pc outbox sent`, or `send`",
)
READERS_HELD_BACK: Final = Kind(
    "readers_held_back",
    Subject.REQUESTS,
    "readers do not see what a relay has published",
    Severity.CRITICAL,
    "readers do not see what is published",
    "end the transaction that is open there; never abort one of `tpc-…`",
)
POSITION_UNREADABLE: Final = Kind(
    "position_unreadable",
    Subject.REQUESTS,
    "a relay can publish nothing now: its broker does not say what is published",
    words="nothing is published",
    cure="start the broker, or mend what it says; then it goes on by itself",
)
NOT_PUBLISHED: Final = Kind(
    "not_published",
    Subject.REQUESTS,
    "a relay's broker refuses a transaction, or does not take it in time",
    words="the application waits",
    cure="mend what it says: it is tried again; at once by `tracing-2pc outbox again`",
)

KINDS: Final = tuple(k for k in tuple(globals().values()) if isinstance(k, Kind))
"""All of the above, in their order."""
