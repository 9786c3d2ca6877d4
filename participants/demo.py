"""`tracing-2pc demo`: real data to a table and a service, with kills in transactions.

Starts a partner and a notifier, a service, and streams NYC flights of January 2013 into
the notifier and a ledger, a table that the job opens itself: one day a batch. Two
things go wrong. The driver and the notifier lose their power when the ledger has
committed a day and the notifier has not: a flight is at one of them and not at the
other. Later the notifier is killed before a commit. Each is started again; the second
time when a watcher has said that its transaction is stuck, and on a terminal when
somebody has looked at it in the console. At the end an oracle that shares no code with
the job compares what is there with the source.

With `--kafka` the flights come from a topic, and the notifier publishes to one. It is
killed once more, in the middle of a publication.

With `--rejects` the ledger has a constraint that some of its rows break, and these go
to a table of rejected rows. The driver is killed once more: before they are kept.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tracing_2pc.core.errors import DecisionLogError
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import TransactionState
from tracing_2pc.operations.init import init
from tracing_2pc.store import SqlDecisionLog, open_log

from . import flights
from .demo_report import Kill, Summary, count_states, observe_kill, show_trace
from .demo_screen import Flight, say, show_batch, show_start, why_slow
from .embedded import databases
from .flights import APPLICATION
from .oracle import judge
from .processes import (
    Process,
    Service,
    free_ports,
    make_table,
    stopping,
    table_at,
)
from .serve import PACKAGE, ROOT
from .topics import Broker
from .watching import Operator

STALLED = 180.0
"""Seconds without a new committed batch after which the demo gives up."""

COLD = 900.0
"""The same for the first batch: a slow machine has Spark's start before it."""

COMMITTING = "participant.before_commit"
"""Where the notifier is killed."""

PUBLISHING = "relay.before_commit"
"""Where it is killed once more, if it publishes to a topic."""

DELIVERING = "delivery.between_commits"
"""Where the driver is killed."""

KEEPING = "rejects.before_keeping"
"""Where it is killed once more, if rows are rejected."""


def main(arguments: Sequence[str]) -> int:
    """Run the demo; 0 if nothing was lost, duplicated, split or left unfinished."""
    options = _parser().parse_args(arguments)
    # So that what was started ends with it, and the folder goes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    started = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="tracing-2pc-demo-"))
    try:
        with databases(options.embedded, folder / "databases") as database:
            urls = database("ledger"), database("notifier")
            more = {"kafka": options.kafka, "rejects": options.rejects}
            demo = Demo.prepare(folder, *urls, **more)
            os.environ["TPC_SPANS"] = str(folder / "spans")  # we read them, at the end
            running = *demo.services, demo.job, *demo.operator.processes
            with stopping(*running), contextlib.closing(demo.log):
                summary = demo.run(
                    options.batches,
                    crash=not options.no_crash,
                    ask=_enter if _somebody_looks(options) else None,
                )
                took = time.monotonic() - started
                summary = dataclasses.replace(summary, seconds=took)
                say("")
                _show(summary, options)
                if _somebody_looks(options):
                    _stay(demo.operator)
    except RuntimeError:
        options.keep = True  # its logs are what is left to look at
        raise
    finally:
        if options.keep:
            say(f"kept {folder}; the logs are in {folder / 'logs'}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return 0 if summary.good else 1


def _somebody_looks(options: argparse.Namespace) -> bool:
    return not options.json and sys.stdin.isatty() and sys.stderr.isatty()


def _enter(line: str) -> None:
    say(line)
    sys.stdin.readline()


def _show(summary: Summary, options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps(summary.as_json()), flush=True)
    else:
        print("\n".join(summary.lines()), flush=True)


def _stay(operator: Operator) -> None:
    say(f"\nthe console stays at {operator}; Ctrl-C ends it")
    with contextlib.suppress(KeyboardInterrupt):
        while operator.console.alive():
            time.sleep(0.2)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("tracing-2pc demo", description=__doc__)
    parser.add_argument(
        "--batches", type=_days, default=31, metavar="N",
        help="days to stream, 1 to 31; default: all",
    )  # fmt: skip
    parser.add_argument(
        "--embedded", choices=["postgres", "sqlite"], default="postgres",
        help="the databases of ledger and notifier; default: postgres",
    )  # fmt: skip
    parser.add_argument(
        "--kafka", action="store_true",
        help="read a topic and publish to one; `make kafka` loads the broker",
    )  # fmt: skip
    parser.add_argument(
        "--rejects", action="store_true",
        help="keep rows that a constraint of the ledger refuses in a table of rejects",
    )  # fmt: skip
    parser.add_argument("--no-crash", action="store_true", help="kill nothing")
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    return parser


def _days(text: str) -> int:
    if not text.isdigit() or int(text) not in flights.DAYS:
        raise argparse.ArgumentTypeError("expected 1 to 31")
    return int(text)


@dataclasses.dataclass(frozen=True)
class Demo:
    """Everything that runs, in one folder."""

    folder: Path
    ledger_database: str
    partner: Service | Broker
    addresses: dict[str, str]
    """Of the participants, by name."""
    notifier: Service
    job: Process
    operator: Operator
    log: SqlDecisionLog
    token: str
    """A reference to the one that may look."""

    @property
    def services(self) -> tuple[Service | Broker, Service]:
        """In the order of their start."""
        return self.partner, self.notifier

    @classmethod
    def prepare(
        cls,
        folder: Path,
        ledger_database: str,
        notifier_database: str,
        *,
        ledger: str = "",
        kafka: bool = False,
        rejects: bool = False,
    ) -> Demo:
        """Lay everything out; nothing runs yet.

        Args:
            folder: holds it.
            ledger_database: URL of the ledger's.
            notifier_database: URL of the notifier's.
            ledger: the ledger's address, if a service of somebody else keeps it.
            kafka: read a topic, and publish to one.
            rejects: give the ledger's table a constraint, and the job a table for the
                rows that break it.
        """
        tokens = folder / "tokens"
        log = f"sqlite:///{folder / 'decisions.db'}"
        for _ in init(folder / "tpc.toml", Settings(log=log), tokens):
            pass
        token_of = dict(line.split() for line in tokens.read_text().splitlines()[1:])
        viewer = folder / "viewer"
        viewer.write_text(token_of["viewer"], encoding="utf-8")
        ports, logs = free_ports(2), folder / "logs"
        partner: Service | Broker
        if kafka:
            partner = Broker(folder / "kafka", logs / "broker.log")
            told, topic = partner.url, {"DEMO_KAFKA": partner.servers}
        else:
            partner = Service(
                "partner", ports[0], logs / "partner.log",
                {"PARTNER_DATABASE": str(folder / "partner.db")},
            )  # fmt: skip
            told, topic = f"{partner.url}/notifications", {}
        common = {
            "TPC_TOKENS_FILE": str(tokens),
            "TPC_TRACE_FILE": str(folder / "trace.jsonl"),
            "TPC_SPANS": str(folder / "spans"),
        }
        addresses = {"ledger": ledger or table_at(ledger_database)}
        notifier = Service(
            "notifier", ports[1], logs / "notifier.log",
            {
                "NOTIFIER_DATABASE": notifier_database,
                "PARTNER_URL": told,
                **common,
            },
        )  # fmt: skip
        addresses["notifier"] = notifier.url
        more = topic | common
        if rejects:
            make_table(ledger_database, flights.CONSTRAINED)
            addresses["rejected"] = table_at(ledger_database, "rejected")
            more["DEMO_REJECTED"] = addresses["rejected"]
        job = Process(
            "job",
            [
                *(sys.executable, "-m", f"{PACKAGE}.job", str(folder)),
                *(addresses["ledger"], notifier.url),
            ],
            logs / "job.log",
            {"TPC_TOKEN": token_of["job"], "PYTHONPATH": str(ROOT), **more},
        )
        named = ",".join(f"{name}={url}" for name, url in addresses.items())
        settings = {**common, "TPC_LOG": log, "TPC_PARTICIPANTS": named}
        operator = Operator(logs, token_of["operator"], settings)
        return cls(
            folder, ledger_database, partner, addresses, notifier, job, operator,
            open_log(log), f"file:{viewer}",
        )  # fmt: skip

    def run(
        self, batches: int, *, crash: bool, ask: Callable[[str], object] | None
    ) -> Summary:
        """Stream, kill, restart, judge.

        Args:
            batches: days to stream.
            crash: kill a driver and a participant on the way.
            ask: shows a line and waits for somebody, if somebody is there.
        """
        days = range(1, batches + 1)
        kafka = self.partner if isinstance(self.partner, Broker) else None
        kill_driver = batches // 3 + 1
        say(f"starting a {self.partner.name} and a notifier; the ledger is a table")
        # It loses its power together with the driver.
        armed = self._armed(COMMITTING, kill_driver, "first-")
        self.notifier.launch(**(armed if crash else {}))
        self.partner.launch()
        for service in self.services:
            service.ready()
        self.operator.start()
        say(f"the console is at {self.operator}")
        if kafka is not None:
            say(f"sending {batches} days of flights to a topic, each in a transaction")
            kafka.feed(days)
            say("starting the Spark job: it reads the topic, and writes to another")
        else:
            flights.feed(self.folder / "in", days)
            say("starting the Spark job: one day of flights is one batch")
        # Each transaction reaches it when a participant has acknowledged: the notifier
        # does not, of this one.
        times = len(self.addresses) * kill_driver - 1
        self.job.start(**(self._armed(DELIVERING, times) if crash else {}))
        kills = list(self._watch(batches, kill_driver, ask, crash=crash))
        say("waiting for the outbox, then comparing with the source")
        verdict = judge(
            *(self.ledger_database, self.partner.url, days),
            add_up=kafka is not None,
            rejects=self._rejects,
        )
        hit = [kill.transaction for kill in kills if kill.transaction]
        return Summary.of(verdict, kills, self.log, show_trace(self.log, hit))

    def _armed(self, failpoint: str, times: int, of: str = "") -> dict[str, str]:
        return {
            "TPC_FAILPOINT": f"{failpoint}:{times}",
            "TPC_FAILPOINT_FILE": str(self.folder / f"fired-{of}{failpoint}"),
        }

    @property
    def _by_topic(self) -> bool:
        return isinstance(self.partner, Broker)

    @property
    def _rejects(self) -> bool:
        return "rejected" in self.addresses

    def _watch(
        self,
        batches: int,
        hit: int,
        ask: Callable[[str], object] | None,
        *,
        crash: bool,
    ) -> Iterator[Kill]:
        """Show progress and start again what dies, until the job has ended well.

        Args:
            batches: days to stream.
            hit: the day in which the driver and the notifier lose their power.
            ask: as in `run`.
            crash: they do, and the notifier dies once more. One that publishes dies a
                third time, perhaps after the job. A driver that rejects rows dies a
                second time, if a day is left.
        """
        began = moved = time.monotonic()
        count, driver_due, stuck_due = 0, crash, crash
        relay_due = crash and self._by_topic
        flight = None
        if crash and not self._by_topic:
            flight = Flight.of_day(hit, rejects=self._rejects)
        while self.job.alive() or self.job.wait(1) != 0 or relay_due:
            time.sleep(0.2)
            if not self.job.alive() and self.job.wait(1) != 0:
                if driver_due:
                    yield self._restart_driver(batches, flight)
                else:
                    yield self._restart_keeping()
                driver_due, moved = False, time.monotonic()
            if not driver_due and not self.notifier.alive():
                if stuck_due:
                    yield self._restart_stuck(ask)
                    stuck_due, moved = False, time.monotonic()
                else:
                    yield self._restart_publishing()
                    relay_due = False
            if (committed := self._committed()) != count:
                count, moved = committed, time.monotonic()
                show_batch(count, None if self._by_topic else batches)
            elif not count:
                show_start(time.monotonic() - began)
            if flight and not driver_due and self._is_at_both(flight):
                flight = None
            self._raise_if_stalled(count, time.monotonic() - moved)

    def _raise_if_stalled(self, count: int, seconds: float) -> None:
        if seconds > (STALLED if count else COLD):
            raise RuntimeError(
                f"no batch was committed for {seconds:.0f} s. {why_slow()}:"
                f"\n{self.job.tail()}"
            )

    def _is_at_both(self, flight: Flight) -> bool:
        """Say so once it is."""
        places = flight.places(self.ledger_database, self.partner.url)
        if all(places):
            self._show(flight, places)
        return all(places)

    @staticmethod
    def _show(flight: Flight, places: tuple[int, int]) -> None:
        for line, colour in flight.lines(places):
            say(line, colour)

    def _restart_driver(self, batches: int, flight: Flight | None) -> Kill:
        self._check_killed("driver", DELIVERING, self.job)
        self.notifier.kill()  # if the commit was still on its way to it
        say("THE POWER IS OFF for the driver and the notifier, in the middle of", "red")
        say("the commit. Look for one flight, as any reader would:", "red")
        if flight:
            places = flight.places(self.ledger_database, self.partner.url)
            self._show(flight, places)
        # What was cut short is sent to it again, once or twice: when it is delivered,
        # and when its replay is confirmed; each later day once.
        times = min((batches + 1) // 3 + 2, batches - batches // 3)
        self.notifier.start(**self._armed(COMMITTING, times))
        kill = self._found("driver and notifier", DELIVERING)
        self.job.start(**(self._armed(KEEPING, 1) if self._rejects else {}))
        say("started both again: the new driver goes on with what is decided")
        return kill

    def _restart_keeping(self) -> Kill:
        self._check_killed("driver", KEEPING, self.job)
        kill = self._found("driver", KEEPING)
        self.job.start()
        say("started the driver again: it writes the batch anew, and rejects anew")
        return kill

    def _restart_stuck(self, ask: Callable[[str], object] | None) -> Kill:
        time.sleep(2.0)  # long enough for the driver to notice
        self._check_killed("notifier", COMMITTING, self.notifier)
        kill = self._found("notifier", COMMITTING)
        say("waiting for the watcher to say what is stuck")
        flag = self.operator.flag(kill.transaction)
        say(f"FLAGGED {flag}" if flag else "the watcher has said nothing of it")
        if ask:
            say(f"look at {self.operator}")
            ask("press Enter to start the notifier again")
        self.notifier.start(**(self._armed(PUBLISHING, 1) if self._by_topic else {}))
        say("started the notifier again")
        return dataclasses.replace(kill, flag=flag)

    def _restart_publishing(self) -> Kill:
        self._check_killed("notifier", PUBLISHING, self.notifier)
        # What is published is committed.
        kill = Kill("notifier", PUBLISHING, transaction="", state="", states={})
        say(f"KILLED {kill}", "red")
        self.notifier.start()
        say("started the notifier again: it publishes the same transaction")
        return kill

    def _check_killed(self, who: str, failpoint: str, process: Process) -> None:
        fired = self.folder / f"fired-{failpoint}"
        if process.wait(1) != -signal.SIGKILL or not fired.exists():
            text = f"the {who} ended, and nobody killed it. Its log ends"
            raise RuntimeError(f"{text}:\n{process.tail()}")
        fired.rename(f"{fired}.seen")  # the next death is not this one

    def _found(self, who: str, failpoint: str) -> Kill:
        kill = observe_kill(who, failpoint, self.log, self.addresses, self.token)
        say(f"KILLED {kill}", "red")
        return kill

    def _committed(self) -> int:
        try:
            return count_states(self.log, APPLICATION)[TransactionState.COMMITTED]
        except DecisionLogError:
            return 0
