"""Judge what the services hold, by the source data and nothing else.

It imports nothing of the project and shares no code with the job. The expected rows are
computed from the CSV files a second time, and compared as multisets with the ledger's
public view and with what the partner received.

`python -m participants.oracle --ledger URL --partner URL --days 1-31`

The partner may be a topic, `kafka://broker:9092/notices`, which is read with
`read_committed`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from .actual import (
    Rows,
    added_up,
    deliveries,
    drained,
    is_topic,
    ledger_rows,
    rejected_rows,
)
from .expected import (
    Expected,
    expected_notices,
    expected_sums,
    is_rejected,
    read_day,
)

EXAMPLES: Final = 5


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What a person wants to know. `notes` names the first few faults.

    Attributes:
        batches: days that the job has processed.
        records: flights in them, in the source.
        ledger_rows: rows that the ledger shows.
        deliveries: notifications that the partner holds.
        requests: requests that the partner got; more than deliveries means repeats. Of
            a topic all records; more means that some were aborted. `unit` says which.
        lost: expected, not there.
        duplicated: there more often than expected.
        wrong: there with other values, or not expected at all.
        split: days that one of the two services has and the other has not.
        rejected: rows that the ledger refused, and that are with the rejected ones.
    """

    batches: int
    records: int
    ledger_rows: int
    deliveries: int
    requests: int
    lost: int
    duplicated: int
    wrong: int
    split: int
    notes: tuple[str, ...]
    unit: str = "requests"
    rejected: int = 0

    @property
    def good(self) -> bool:
        """Whether everything is there, once, right and together."""
        return not (self.lost or self.duplicated or self.wrong or self.split)

    def lines(self) -> Iterator[str]:
        """Say it to a person, one line each."""
        yield f"batches     {self.batches:>7,}"
        yield f"records     {self.records:>7,}"
        yield f"ledger rows {self.ledger_rows:>7,}"
        if self.rejected:
            yield f"rejected    {self.rejected:>7,}"
        yield f"deliveries  {self.deliveries:>7,} in {self.requests:,} {self.unit}"
        for name in ("lost", "duplicated", "wrong", "split"):
            yield f"{name:<11} {getattr(self, name):>7,}"
        yield from (f"  {note}" for note in self.notes)


def judge(
    ledger: str,
    partner: str,
    days: Iterable[int],
    *,
    data: Path | None = None,
    timeout: float = 60.0,
    stall: float = 30.0,
    add_up: bool = False,
    rejects: bool = False,
) -> Verdict:
    """Compare both services with the source, once the outbox has drained.

    Args:
        ledger: SQLAlchemy URL of the ledger's database.
        partner: URL of the partner, as the notifier has it, or its base; or a topic.
        days: days of January 2013 whose batches the job has processed.
        data: folder of the CSV files; ours by default.
        timeout: how many seconds to wait for the partner at most.
        stall: the partner got no request for so many seconds: do not wait longer.
        add_up: a batch is no day: the ledger has some rows for each.
        rejects: the ledger has a constraint, and the rows that break it are in a table
            `rejected` beside it. Each row is in one of the two, where it belongs.
    """
    dates = sorted({f"2013-01-{day:02}" for day in days})
    flights = [f for date in dates for f in read_day(date, data)]
    sums, notices = expected_sums(flights), expected_notices(flights)
    received, requests = drained(partner, len(notices), timeout, stall)
    kept, notifications = ledger_rows(ledger), deliveries(received)
    rejected = rejected_rows(ledger) if rejects else []
    rows = added_up(kept + rejected) if add_up else kept + rejected
    faults = [
        *compare("ledger", sums, rows),
        *(misplaced(kept, rejected) if rejects else ()),
        *compare("partner", notices, notifications),
        *split(dates, notices, rows, notifications),
    ]
    counts = Counter(kind for kind, _ in faults)
    return Verdict(
        **{kind: counts[kind] for kind in ("lost", "duplicated", "wrong", "split")},
        batches=len(dates),
        records=len(flights),
        ledger_rows=len(kept),
        rejected=len(rejected),
        deliveries=len(notifications),
        requests=requests,
        notes=tuple(_examples(faults)),
        unit="records, with the aborted ones" if is_topic(partner) else "requests",
    )


def compare(where: str, expected: Expected, actual: Rows) -> Iterator[tuple[str, str]]:
    """Name each fault of one service: lost, duplicated or wrong, and which."""
    times = Counter(key for key, _ in actual)
    for key in expected.keys() - times.keys():
        yield "lost", f"{where} {' '.join(key)}"
    for key, values in actual:
        if expected.get(key) != values:
            yield "wrong", f"{where} {' '.join(key)}: {values}, not {expected.get(key)}"
    for key, count in times.items():
        yield from [("duplicated", f"{where} {' '.join(key)}")] * (count - 1)


def misplaced(kept: Rows, rejected: Rows) -> Iterator[tuple[str, str]]:
    """Name each row that the ledger had to refuse, or refused without a reason."""
    for key, values in kept:
        if is_rejected(values):
            yield "wrong", f"ledger {' '.join(key)}: {values} breaks its constraint"
    for key, values in rejected:
        if not is_rejected(values):
            yield "wrong", f"rejected {' '.join(key)}: {values} breaks no constraint"


def split(
    dates: list[str], notices: Expected, rows: Rows, told: Rows
) -> Iterator[tuple[str, str]]:
    """Name each day that one service has and the other has not."""
    due = {key[0] for key in notices}
    in_ledger, at_partner = (
        {key[0] for key, _ in one_side} for one_side in (rows, told)
    )
    for date in dates:
        if date in due and (date in in_ledger) != (date in at_partner):
            where = "ledger" if date in in_ledger else "partner"
            yield "split", f"{date} is only at the {where}"


def _examples(faults: list[tuple[str, str]]) -> Iterator[str]:
    for kind in ("lost", "duplicated", "wrong", "split"):
        texts = sorted(text for fault, text in faults if fault == kind)
        yield from (f"{kind}: {text}" for text in texts[:EXAMPLES])
        if more := len(texts[EXAMPLES:]):
            yield f"{kind}: and {more:,} more"
