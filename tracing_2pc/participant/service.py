"""The service's methods, one for each request of any transport.

A transport reads a request, admits its caller and opens the span; then it calls one of
these methods, and translates the answer or the error.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable
from importlib import metadata
from typing import Any

from tracing_2pc.core.access import Caller, Role
from tracing_2pc.core.errors import RefusalError
from tracing_2pc.core.model import Carrier, TransactionId
from tracing_2pc.core.ports import Step
from tracing_2pc.core.states import (
    ASK_AGAIN,
    Decision,
    Refusal,
    RequestState,
)
from tracing_2pc.participant.answers import Answer, BranchRef
from tracing_2pc.participant.body import Body
from tracing_2pc.participant.engine import Order, ParticipantEngine, Query
from tracing_2pc.participant.requests import KeepsRequests, RequestOrder, RequestQuery
from tracing_2pc.tracing.spans import identity

logger = logging.getLogger(__name__)


class ParticipantService:
    """Checks the caller's role, describes the span, and asks the engine.

    `keep_context` is called inside of a request's span once that names the transaction,
    so that the transport can log a refusal with its ids.
    """

    def __init__(
        self, engine: ParticipantEngine, keep_context: Callable[[], object]
    ) -> None:
        self._engine = engine
        self._keep_context = keep_context

    def prepare(
        self,
        caller: Caller,
        step: Step,
        transaction: TransactionId,
        participant: str,
        ref: BranchRef,
        body: Body,
        carrier: Carrier,
        journal: str | None = None,
        name_rows: int = 0,
    ) -> Answer:
        """Make a branch durable, and vote."""
        self._check(caller, "prepare", transaction, step)
        step.set("tpc.branch", str(ref.branch))
        step.set("tpc.rows", ref.rows)
        step.set("tpc.bytes", body.length)
        asked = (transaction, participant, ref, body, carrier)
        answer = self._engine.prepare(
            *asked, may_name=_may_name(caller), journal=journal, name_rows=name_rows
        )
        if answer.refusal is None:
            step.set("tpc.vote", str(answer.fields["vote"]))
        elif answer.refusal not in ASK_AGAIN:
            step.set("tpc.vote", "abort")
        return answer

    def commit(self, caller: Caller, step: Step, order: Order) -> Answer:
        """Commit the named branches, and seal."""
        self._check(caller, "commit", order.transaction, step)
        return self._engine.commit(order)

    def abort(self, caller: Caller, step: Step, order: Order) -> Answer:
        """Abort a transaction and seal it, or abort one branch."""
        action = "abort" if order.branch is None else "abort branch"
        if order.digest is not None:
            action = "abort branch by digest"
        self._check(caller, action, order.transaction, step)
        may_name = _may_name(caller)
        return self._engine.abort(dataclasses.replace(order, may_name=may_name))

    def resolve(
        self, caller: Caller, step: Step, order: Order, outcome: Decision
    ) -> Answer:
        """Carry out an operator's decision about an orphan."""
        self._check(caller, "resolve", order.transaction, step)
        answer = self._engine.resolve(order, outcome)
        if answer.refusal is None:
            logger.warning(
                "resolved by hand: transaction=%s outcome=%s: %s",
                *(order.transaction, outcome, order.reason),
            )
        return answer

    def show(
        self,
        caller: Caller,
        step: Step,
        transaction: TransactionId,
        participant: str | None,
        journal: str | None = None,
    ) -> Answer:
        """Show one transaction."""
        self._check(caller, "show", transaction, step)
        return self._engine.show(transaction, participant, journal)

    def list_open(
        self, caller: Caller, query: Query, longest: int
    ) -> tuple[dict[str, Any], int | None]:
        """List unsealed branches that the caller's token may see.

        It is a page of at most `longest` bytes, and the tag that the next one follows.
        """
        caller.check("list", query.application)
        only = query.application or caller.application
        page = self._engine.list_open(dataclasses.replace(query, application=only))
        items: list[dict[str, Any]] = []
        last = page.next
        for number, (transaction, row, carrier) in enumerate(page.branches):
            item = {
                "transaction_id": str(transaction),
                "branch": str(row.ref.branch),
                "state": str(row.state),
                "age": max(0.0, page.now - row.since),
                "rows": row.ref.rows,
                "carrier": carrier,
            }
            longest -= len(json.dumps(item))
            if items and longest < 0:
                last = page.branches[number - 1][1].tag
                break
            items.append(item)
        return {"transactions": items, "now": page.now, "application": only}, last

    @property
    def _requests(self) -> KeepsRequests:
        if not isinstance(self._engine, KeepsRequests):
            detail = "this participant is no outbox: it has no requests in quarantine"
            raise RefusalError(Refusal.UNKNOWN, detail)
        return self._engine

    def quarantined(
        self, caller: Caller, query: RequestQuery, longest: int
    ) -> tuple[dict[str, Any], tuple[float, str] | None]:
        """List the requests in quarantine that the caller may see, as `list_open`."""
        caller.check("quarantined", query.application)
        only = query.application or caller.application
        wanted = dataclasses.replace(query, application=only, limit=query.limit + 1)
        page = self._requests.list_requests(wanted)
        items: list[dict[str, Any]] = []
        for request in page.requests[: query.limit]:
            item = dataclasses.asdict(request)
            item |= {"key": str(request.key), "state": str(request.state)}
            longest -= len(json.dumps(item))
            if items and longest < 0:
                break
            items.append(item)
        fields = {"requests": items, "now": page.now, "application": only}
        if len(items) == len(page.requests):
            return fields, None
        last = page.requests[len(items) - 1]
        moment = last.since if last.dropped_at is None else last.dropped_at
        return fields, (moment, str(last.key))

    def order(
        self, caller: Caller, step: Step, action: str, order: RequestOrder
    ) -> RequestState:
        """Have a request in quarantine sent once more, or drop it."""
        self._check(caller, action, order.key.transaction, step)
        is_drop, requests = action == "drop", self._requests
        state = (requests.drop_request if is_drop else requests.send_again)(order)
        explanation = order.reason or "no reason given"
        # The state after it: repeated, it changed nothing.
        text = "order by hand: %s request=%s who=%s: the request is %s: %s"
        logger.warning(text, action, order.key, order.who, state, explanation)
        return state

    def whoami(self, caller: Caller) -> dict[str, Any]:
        """Return the journal's id, its names, and facts that the caller may learn."""
        return {
            **dataclasses.asdict(self._engine.identity(caller.application)),
            "version": metadata.version("tracing-2pc"),
            "role": str(caller.role or "anybody"),
            "gauges": self._engine.gauges() if caller.may("metrics") else {},
            "pooled": self._engine.pooled,
            "unfit": self._unfit(caller),
        }

    def _unfit(self, caller: Caller) -> list[list[str]]:
        """Return misfits, as far as the caller may know of applications."""
        if not caller.may("metrics"):
            return []
        bound = caller.application
        return [
            list(map(str, misfit))
            for misfit in self._engine.unfit()
            if bound is None or misfit.application in ("", bound)
        ]

    def _check(
        self, caller: Caller, action: str, transaction: TransactionId, step: Step
    ) -> None:
        caller.check(action, transaction.application)
        for name, value in identity(transaction).items():
            step.set(name, value)
        self._keep_context()


def _may_name(caller: Caller) -> bool:
    """Return whether the name that a caller gives is kept: a job's, not a task's."""
    return caller.role is not Role.EXECUTOR
