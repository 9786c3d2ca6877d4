"""The turn of an outbox with a relay: publications, one after another."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from typing import Final

import sqlalchemy as sa

from tracing_2pc.core import names
from tracing_2pc.core.errors import TwoPhaseError
from tracing_2pc.core.failpoints import failpoint
from tracing_2pc.core.model import Carrier, log_fields
from tracing_2pc.core.settings import without_secrets
from tracing_2pc.outbox.publications import (
    BEGUN,
    CONFIRMED,
    HIDDEN,
    SIGNED,
    UNREADABLE,
    AnotherBrokerError,
    Publications,
    is_used,
)
from tracing_2pc.outbox.relay import OutlastedError, Position, Publication, Relay
from tracing_2pc.outbox.turns import (
    ALONE,
    LONGEST_PAUSE,
    LeaseLostError,
    Turns,
    pause_after,
)
from tracing_2pc.store.engines.database import describe_error
from tracing_2pc.tracing.spans import span

POLL: Final = 0.1
LOOK: Final = 1.0
"""Seconds: between two looks at the queue, and at readers while there is something in
it."""

IDLE_LOOK: Final = 10.0
"""Seconds between two looks at readers while there is nothing to publish: a broker that
is gone is known before something has to go there."""

_LONGEST_CAUSE: Final = 300
_BLIND: Final = 2
"""Looks at readers in a row that fail, after which the broker does not answer."""

LONGEST_OUTLASTED: Final = 86_400.0
"""Seconds before one that takes too long is tried again, at most."""

_NO_ANSWER: Final = (
    sa.exc.OperationalError,
    sa.exc.InterfaceError,
    sa.exc.TimeoutError,
)
"""Errors of a database that are of no application."""

logger = logging.getLogger(__name__)


class _StoppingError(Exception):
    """This process ends: a running publication is left to the next one."""


class Publisher(Turns):
    """Publishes one transaction after another, while it holds the lease.

    A process that takes over fences the previous publisher, and reads the position at
    the broker. Equal to the begun one: that publication is in. Equal to the confirmed
    one: it is not, and is published again. Anything else means that store or broker was
    restored from a backup, or cloned: it stops, for a person. After any error of a turn
    the same happens: position and records are read again.
    """

    def __init__(self, publications: Publications, relay: Relay, lease: float) -> None:
        self._publications = publications
        self._relay = relay
        self._logged = ""
        # By application, after publications that failed: how many, and until when.
        self._failed: dict[str, tuple[int, float]] = {}
        self._in_vain = 0  # tries in a row after which nothing was published
        super().__init__(publications.queue, lease)

    def _forget(self) -> None:
        self._is_taken_over = False
        self._sessions_lost = 0
        self._confirmed = Position()  # by this process, or found when it took over
        self._is_reported = False  # that turns fail is on record still
        self._is_silent = False  # the broker did not say what readers see
        self._blind = 0  # so many times in a row
        self._is_expecting = False  # what an earlier process has published
        self._unreadable = 0
        self._looked_at, self._checked_at = 0.0, -float("inf")
        self._seen = 0
        self._is_hidden = False
        self._let_go()

    def stop(self) -> None:
        """End the publication under way, give the lease back, and stay stopped."""
        super().stop()
        if self._thread is None or not self._thread.is_alive():
            self._relay.close()

    def _let_go(self) -> None:
        with contextlib.suppress(Exception):  # whatever it holds, a successor fences
            self._relay.let_go()

    def _report(self, reason: str) -> None:
        self._publications.note(
            self._holder, UNREADABLE, f"turns of the relay fail: {reason}"
        )

    def _take_turn(self) -> float:
        if time.monotonic() - self._checked_at > LONGEST_PAUSE:
            self._checked_at = time.monotonic()
            self._ask_what_fits()
            self._keep_lease()
        if self._sessions_lost != (lost := self._queue.database.sessions_lost):
            self._is_taken_over, self._sessions_lost = False, lost
        if not self._is_taken_over and (pause := self._take_over()):
            return pause
        now = time.monotonic()
        publication, is_waiting = None, not self._publications.is_empty()
        if is_waiting:
            passed = [name for name, (_, until) in self._failed.items() if until > now]
            self._keep_lease()
            publication = self._publications.begin(
                self._holder, passed, self._confirmed
            )
            if publication is not None and not self._publish(publication):
                return self._step_back(0.0)
        pause = LOOK if is_waiting else IDLE_LOOK
        if (is_waiting and publication is None) or now - self._looked_at > pause:
            self._looked_at = now
            self._look_at_readers()
        has_deleted = is_waiting and self._publications.delete_published()
        if self._is_reported and not self._is_silent:
            self._publications.clear(self._holder, UNREADABLE)
            self._is_reported = False
        return 0.0 if has_deleted or publication is not None else POLL

    def _ask_what_fits(self) -> None:
        journal = self._publications.journal()
        try:
            unfit = [*self._relay.unfit(journal)]
        except Exception as error:  # noqa: BLE001 - it is asked again
            logger.info("outbox: not known what fits at the broker: %s", error)
            return
        self._publications.note_unfit(self._holder, unfit)

    def _look_at_readers(self) -> None:
        """Note how far readers see, and which publications are hidden from them."""
        try:
            through, trouble = self._relay.readers()
        except Exception as error:  # noqa: BLE001 - it is looked at again
            logger.info("outbox: not known what readers see: %s", error)
            self._blind += 1
            if self._blind < _BLIND:
                return
            trouble = (
                f"{self._at_broker} does not say what readers see: {cause_of(error)}"
            )
            self._publications.note(self._holder, UNREADABLE, trouble)
            self._is_silent = self._is_reported = True
            return
        self._is_silent, self._blind = False, 0
        if through > self._seen:
            self._publications.seen(through)
            self._seen, self._is_hidden = through, False
        if trouble and not self._is_hidden:
            logger.error("outbox: readers do not see what is published: %s", trouble)
            self._publications.note(self._holder, HIDDEN, trouble)
            self._is_hidden = True

    def _take_over(self) -> float:
        """Learn what is in there; return seconds to wait, 0 if publishing may begin."""
        if self._publications.is_stopped():
            return LONGEST_PAUSE
        journal = self._publications.journal()
        positions = self._publications.positions()
        try:
            was_used = is_used(positions)
            must_exist = was_used and SIGNED not in positions
            broker = self._relay.identify()
            is_another = self._is_another(broker, was_used=was_used)
            position = self._relay.take_over(journal, must_exist=must_exist)
            # Read after it: while the lease is held nobody else changes them now.
            positions = self._publications.positions()
            confirmed, begun = positions[CONFIRMED], positions.get(BEGUN)
            is_new = begun is None and not confirmed.number
            if is_another:
                is_there = position is not None and position in (begun, confirmed)
                is_proven = SIGNED in positions or is_there
                self._publications.check_broker(broker, is_proven=is_proven)
            if SIGNED in positions or (position is None and is_new):
                only = Publication(confirmed, None, Carrier(), keep=self._keep_on)
                self._relay.publish(only)
                position = confirmed
        except sa.exc.SQLAlchemyError:
            raise
        except (LeaseLostError, _StoppingError):
            raise LeaseLostError from None
        except Exception as error:  # noqa: BLE001 - unreadable is not now, without end
            return self._wait_for_position(error)
        if begun is not None and position == begun:
            self._publications.confirm(self._holder, begun)
        elif position != confirmed:
            return self._halt(confirmed, begun, position)
        elif begun is not None:
            self._publications.withdraw(self._holder)
        self._confirmed = position
        if not self._is_expecting:
            topics = self._publications.topics_unseen(self._keep_lease)
            try:
                self._relay.expect(topics)
            except Exception as error:  # noqa: BLE001 - as above
                return self._wait_for_position(error)
            self._is_expecting = True
        self._is_reported = self._failures > 0  # until a turn succeeds
        self._publications.go_on_from(self._holder, is_well=not self._is_reported)
        if self._logged:
            logger.warning("outbox: it publishes again")
        self._is_taken_over, self._unreadable, self._logged = True, 0, ""
        return 0.0

    def _is_another(self, broker: str, *, was_used: bool) -> bool:
        """Whether it is not the broker on record; one that has moved has our position.

        Raises:
            AnotherBrokerError: there is no position yet by which it could be known.
        """
        try:
            self._publications.check_broker(broker)
        except AnotherBrokerError:
            if not was_used:
                raise
            return True
        return False

    def _wait_for_position(self, error: Exception) -> float:
        self._unreadable += 1
        trouble = f"{self._at_broker} does not say what is published: {cause_of(error)}"
        self._publications.note(self._holder, UNREADABLE, trouble)
        if trouble != self._logged:
            logger.warning("outbox: nothing is published: %s", trouble)
        self._logged = trouble
        return self._step_back(pause_after(self._unreadable))

    @property
    def _at_broker(self) -> str:
        address = getattr(self._relay, "address", "")
        return f"the broker at {address}" if address else "the broker"

    def _step_back(self, pause: float) -> float:
        """Leave the lease to another process, after two failed tries; return a pause.

        This one may have the right to read the position, and none to write to the
        topic.
        """
        self._in_vain += 1
        if self._in_vain < ALONE:
            return pause
        self._in_vain = 0
        return max(pause, self._leave())

    def _halt(
        self, confirmed: Position, begun: Position | None, position: Position | None
    ) -> float:
        mismatch = (
            f"the broker has {_words(position)}, here {_words(begun)} is begun and "
            f"{_words(confirmed)} confirmed: store or broker was put back, or cloned"
        )
        try:
            mismatch = f"{mismatch}; {self._relay.ends()}"
        except Exception:
            logger.warning("outbox: the ends of topics cannot be read", exc_info=True)
        self._publications.stop(self._holder, position or Position(), mismatch)
        logger.error(
            "outbox: the relay has stopped, a person must decide: %s", mismatch
        )
        return LONGEST_PAUSE

    def _publish(self, publication: Publication) -> bool:
        transaction = publication.transaction
        assert transaction is not None  # noqa: S101 - for the type checker
        failpoint("relay.before_publish")
        kept = dataclasses.replace(publication, keep=self._keep_on)
        about: dict[str, str | int] = {
            "tpc.transaction.id": str(transaction),
            "tpc.application": transaction.application,
            "messaging.system": "tracing_2pc",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": self._queue.name,
        }
        try:
            with span(
                names.OUTBOX_SEND, carrier=publication.carrier, attributes=about
            ) as step:
                try:
                    self._relay.publish(kept)
                except Exception as error:
                    step.set("error.type", type(error).__name__)
                    raise
        except (LeaseLostError, _StoppingError):
            raise LeaseLostError from None
        except _NO_ANSWER:
            raise
        except Exception as error:  # noqa: BLE001 - what became of it is read next
            self._is_taken_over = False
            self._held = -float("inf")  # who took over has fenced this one
            self._let_go()
            self._back_off(publication, error)
            return False
        failpoint("relay.before_confirm")
        self._in_vain = 0
        self._failed.pop(transaction.application, None)
        self._publications.confirm(self._holder, publication.position)
        self._confirmed = publication.position
        return True

    def _keep_on(self) -> None:
        """Raise if another process has the lease, or this one ends."""
        if self._stopping.is_set():
            raise _StoppingError
        self._keep_lease()

    def _back_off(self, publication: Publication, error: Exception) -> None:
        transaction = publication.transaction
        assert transaction is not None  # noqa: S101 - for the type checker
        failures = self._failed.get(transaction.application, (0, 0.0))[0] + 1
        pause = pause_after(failures)
        if isinstance(error, OutlastedError):  # others, and readers, wait for each try
            pause = min(error.seconds * 4**failures, LONGEST_OUTLASTED)
        until = time.monotonic() + pause
        self._failed[transaction.application] = (failures, until)
        # Another's message may hold the record.
        failure = f"{type(error).__name__}: {error}"
        if isinstance(error, TwoPhaseError):
            failure = str(error)
        elif isinstance(error, sa.exc.SQLAlchemyError):
            failure = f"its messages cannot be read: {describe_error(error)}"
        self._publications.refuse(self._holder, transaction, failure)
        logger.warning(
            "outbox: not published, again later: transaction=%s pause=%.1f: %s",
            transaction,
            pause,
            failure,
            extra=log_fields(transaction, publication.carrier),
        )


def cause_of(error: Exception) -> str:
    """Return an error in a line, without secrets; of a client of Kafka its text."""
    first = error.args[0] if error.args else error
    text = first.str() if hasattr(first, "str") else str(error)
    line = " ".join(f"{type(error).__name__}: {text}".split())
    return without_secrets(line)[:_LONGEST_CAUSE]


def _words(position: Position | None) -> str:
    if position is None:
        return "no position"
    return f"position {position.number} ({position.transaction or 'none yet'})"
