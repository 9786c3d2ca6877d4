"""What stands in the way of a goal, and what was tried: shown where it is not met."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_SMALL: Final = """\
**Small batches (I8 and I9 at 10 and 2,000 rows, I5 at 2,000).** Spark's own job, which
reads the two files and hands the rows to the driver, is two fifths of the library's
time at 10 rows, and a third at 2,000. No sink can do without one such job; the two JDBC
appends need two, or three where the batch is persisted. That job alone takes a fifth of
their time at 10 rows, and a sixth at 2,000 ([Beside others](#beside-others)), where the
limit is a quarter. The rest is Python and round trips, not the disk: flushes are quick
here. Of a batch of 10 rows half was Spark's job, a fifth the two votes, a seventh the
two commits, and a twentieth each to begin and to decide. Of a batch without Spark,
SQLAlchemy and psycopg are the largest part of the CPU time of the driver and of each
service (a quarter in the driver), and all of them share two cores.

Tried, and in use: one local transaction for a prepare (11 requests to PostgreSQL
instead of 15; one sees whether somebody has altered the table), writes joined into one
statement, half as many requests to the decision log, the last acknowledgements together
with the end, statements made once, sessions that forget no prepared statement, what
Spark says of a run asked once.
Together they took a fifth off the time of a batch without Spark. Not done: to begin
while Spark computes, because jobs carry the transaction's id, which `begin` gives
out; to return before every participant has committed, because the rows of a query
that has ended must be there for readers; to take the lock before COPY, which saves
two of the requests, because a process that is stopped there would keep it.
Without effect that could be told from noise: threads that are kept between requests
(half a per cent at best), and Python's garbage collector switched off."""

_EVENTS: Final = """\
**Events by HTTP (E1, E2).** COPY is told rows that it believes. A gateway reads each
line strictly, makes a digest of its content, and writes two tables with three indexes:
what they cost PostgreSQL alone is about twice a COPY, and Python takes more than that
again. Tried, and in use: new events are stored as if no id were there, in one statement
with its own commit, and looked for only when one is; one JSON text instead of a
statement for each row, a line that is parsed once instead of three times. Tried by hand
and not in use: all events of a request in one row, ids alone in an index of their own,
an index of ranges for positions. PostgreSQL then takes 1.4 of a COPY, and what is left
of two is about what HTTP, a parser in C and digests take together.
Of a single event the view takes twice what an empty route of Flask does (a span, a
token, counts). Threads that wait for one flush, and are woken by it, cost as much
again. Flushes are shared by ten, because who leads one pauses where others are on
their way."""

_KAFKA: Final = """\
**Kafka (K2).** Plain producers send while Spark computes, from both executors; a relay
begins after the commit, with one thread, and readers see nothing before its end. Each
message has three headers, which take as many bytes as the record: with them a producer
and its client's thread need four times the CPU time, the broker twice. Tried, and in
use: records written to JSON column by column, days and moments by Arrow, values made
only for those who ask; messages stored in blocks that are neither escaped nor parsed
again; COPY in binary. They took half off the CPU time of a prepare. Batches of 250 kB
at the producer instead of 16: two thirds of its CPU time and of a publication's, whose
last batches are at the broker a quarter as long after the last is made. Not done: to
hand anything to the broker before the decision, because it would be in doubt there; to
compress by default, because not every reader can read lz4, and gzip costs more than it
spares. Without effect that could be told from noise: a header less, the position sent
first, other waits for a batch, larger ones."""

_LARGE: Final = """\
**A million rows (I8).** Executors write them: the JVM hands the rows to Python
workers, which keep each partition until it is digested, and then send it. That, the
JVM's reading and both servers' COPY share two cores, so that nothing overlaps. COPY
in binary took a quarter off. Not done: to send a partition while it is computed,
because a vote is for a digest that the request announces; to convert the rows once
for all participants, because each compares them with the types of its own table."""

_COPIES: Final = """\
**The driver's CPU time with several participants (I10-cpu).** Rows are encoded and
digested once for all, which is so cheap by now that the rest decides: of 10 rows, with
nothing to encode, four participants cost 1.7 of one, too. Each is asked twice, has
spans of its own, and is sent all bytes; on the loopback device the sender also does
the kernel's work of receiving. Larger blocks took a part of it off (see the series
below), and acknowledgements that go on record together a sixth of the CPU time of a
small batch with four. Compressed bodies would be a third as long; participants refuse
those, because a small body could then become very large in their memory."""

_FAR: Final = """\
**Time with several participants (I10-wall).** They are asked at the same time: one
after another, four would take about four times as long. But the four services and the
driver are processes on two cores, and the CPU time of a service for a small batch is
not small beside 20 ms. Acknowledgements that go on record together took a tenth off
the time with four and with eight, measured without the delay."""

_QUIET: Final = """\
**What should not grow (I12).** What a batch and a reader ask for is reached by an
index, however many finished transactions there are. A line that is inconclusive has an
interval as wide as the noise of this machine was."""

_DECORATOR: Final = """\
**The decorator (A1 to A6).** A phase does more than a bare span: it finds out to
which branch the handle belongs, and whether its parent class is calling. It is a few
microseconds for a phase, and a batch has a handful of phases."""

_SECOND: Final = """\
**A second backend (A8-headers, A8-process).** For the nine spans three headers are
written and three trace contexts are read, and every span is encoded a second time."""

OBSTACLES: Final[Mapping[tuple[str, ...], str]] = {
    ("A1", "A2", "A3", "A4", "A6"): _DECORATOR,
    ("A8-headers", "A8-process"): _SECOND,
    ("I8 10", "I8 2000", "I9 10", "I9 2000", "I5 2000"): _SMALL,
    ("I8 1000000",): _LARGE,
    ("K1", "K2"): _KAFKA,
    ("E1", "E2"): _EVENTS,
    ("I10-wall",): _FAR,
    ("I10-cpu",): _COPIES,
    ("I12-view", "I12-sqlite", "I12-postgresql"): _QUIET,
}
"""By the goals that it is about."""

DROPPED: Final = """\
### What is not a goal

Earlier plans had goals for parts: a call of the HTTP client, an encoder, a request to
Flask, a statement of the journal, a scan for orphans. A user sees none of them alone:
they are parts of a micro-batch, of a sweep or of a look-up, which are measured whole.
What has an exact number is counted and must hold (`make counts`): flushes, requests,
connections, Spark jobs, Python instructions for a record.
"""
