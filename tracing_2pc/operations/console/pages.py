"""The pages: what is unfinished, one transaction, and the two steps to resolve it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from flask import Blueprint, g, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from tracing_2pc.errors import ConfigurationError, ContractError, ParticipantError
from tracing_2pc.links import links_of, places_of
from tracing_2pc.model import TransactionId
from tracing_2pc.operations.console.auth import Login
from tracing_2pc.operations.console.deeds import (
    Deed,
    carry_out,
    deeds,
)
from tracing_2pc.operations.console.sight import Sight
from tracing_2pc.operations.console.waterfall import waterfall
from tracing_2pc.operations.console.words import SAFE, also, is_unsure, sentence
from tracing_2pc.operations.signing import LONGEST_REASON, check_reason
from tracing_2pc.operations.view import View
from tracing_2pc.participant.problems import Problem

LINES: Final = 50
"""Branches, receipts and events that a page shows of each kind."""


class Pages:
    """Show what `Sight` has read, and do what an operator has confirmed."""

    def __init__(self, sight: Sight) -> None:
        self._sight = sight

    def blueprint(self) -> Blueprint:
        """Put the routes on record."""
        made = Blueprint("pages", __name__)
        for path, name, view, method in (
            ("/", "board", self.board, "GET"),
            ("/transactions/<id_>", "transaction", self.transaction, "GET"),
            ("/transactions/<id_>/confirm", "confirm", self.confirm, "POST"),
            ("/transactions/<id_>/resolve", "resolve", self.resolve, "POST"),
        ):
            made.add_url_rule(path, name, view, methods=[method])
        return made

    def board(self) -> ResponseReturnValue:
        """Show what is unfinished, the last hour, and what was finished."""
        bound = _login().caller.application
        hours, others = self._sight.hours(bound)
        return render_template(
            "board.html",
            board=self._sight.board(bound),
            hours=hours,
            others=others,
            now=self._sight.sources.clock.now(),
            alone=not self._sight.sources.participants,
            places=places_of(self._sight.sources.settings.links),
        )

    def transaction(self, id_: str) -> ResponseReturnValue:
        """Show all that is known of one transaction; the log alone if others wait."""
        transaction = _read(id_)
        with self._sight.asking() as free:
            look = self._sight.view if free else self._sight.view_of_log
            view = look(transaction)
        login = _login()
        notice, login.notice = login.notice, None
        page = render_template(
            "transaction.html",
            view=view,
            alone=not free,
            unsure=is_unsure(view),
            unknown=not _is_known(view),
            sentence=sentence(view),
            also=also(view),
            safe=[] if view.finished else [SAFE[d.verdict] for d in view.diagnoses[:1]],
            waterfall=waterfall(view),
            links=links_of(
                self._sight.sources.settings.links, view.transaction, view.trace
            ),
            deeds=list(deeds(view)),
            longest=LONGEST_REASON,
            notice=notice,
            most=LINES,
            now=view.at,
        )
        return page, 200 if _is_known(view) else 404

    def confirm(self, id_: str) -> ResponseReturnValue:
        """Show once more what would be done; change nothing."""
        with self._acting():
            deed, view = self._asked(_read(id_))
        return self._confirmation(deed, view, _reason())

    def resolve(self, id_: str) -> ResponseReturnValue:
        """Do what was confirmed, if it still is what was shown."""
        with self._acting():
            return self._resolve(id_)

    def _resolve(self, id_: str) -> ResponseReturnValue:
        deed, view = self._asked(_read(id_))
        reason = _reason()
        if request.form.get("seal") != deed.seal:
            wrong = "What it does or costs has changed since: read it again."
            return self._confirmation(deed, view, reason, wrong), 409
        typed = request.form.get("batch", "").strip()
        if not deed.action.safe and typed != str(view.transaction.batch):
            wrong = "Type the number of the batch: it is in the middle of the id."
            return self._confirmation(deed, view, reason, wrong), 400
        login = _login()
        try:
            login.notice = carry_out(deed, view, self._sight.sources, login.who, reason)
        except (ConfigurationError, ContractError) as error:
            raise Problem(409, str(error)) from None
        except ParticipantError as error:
            raise Problem(502, f"{error}; look at it again") from None
        finally:
            self._sight.changed(view.transaction)
        return redirect(url_for("pages.transaction", id_=id_), 303)

    @contextlib.contextmanager
    def _acting(self) -> Iterator[None]:
        """Ask participants meanwhile.

        Raises:
            Problem: 503: too many forms wait for them already.
        """
        with self._sight.acting() as free:
            if not free:
                raise Problem(
                    503,
                    "nothing was done: other forms wait for participants that do not "
                    "answer. Go back, and send it again in some seconds",
                )
            yield

    def _asked(self, transaction: TransactionId) -> tuple[Deed, View]:
        """Return what a form asks for, from a look that is new.

        Raises:
            Problem: 403: a viewer; 409: the log does not allow it now.
        """
        if not _login().operator:
            raise Problem(403, "a viewer may look: log in as operator to resolve")
        self._sight.changed(transaction)
        view = self._sight.view(transaction)
        for deed in deeds(view):
            if deed.key == request.form.get("deed"):
                return deed, view
        said = f"{transaction} is {view.state or 'not on record'}"
        raise Problem(409, f"{said}: this cannot be done now; look at it again")

    def _confirmation(
        self, deed: Deed, view: View, reason: str, wrong: str | None = None
    ) -> str:
        return render_template(
            "confirm.html",
            deed=deed,
            view=view,
            reason=reason,
            wrong=wrong,
            sentence=sentence(view),
        )


def _login() -> Login:
    login: Login = g.login
    return login


def _read(id_: str) -> TransactionId:
    """Read an id from a path.

    Raises:
        Problem: 404: none; 403: of an application that the token is not for.
    """
    try:
        transaction = TransactionId.parse(id_)
    except ValueError:
        raise Problem(
            404, "an id is <application>.<batch>.<attempt>, as in orders.7.1"
        ) from None
    if not _login().may_see(transaction.application):
        raise Problem(403, f"your token is for {_login().caller.application} only")
    return transaction


def _reason() -> str:
    try:
        return check_reason(request.form.get("reason", ""))
    except ConfigurationError:
        raise Problem(
            400,
            "say why, in one line of printable text, "
            f"{LONGEST_REASON} characters at most: it is kept in the audit",
        ) from None


def _is_known(view: View) -> bool:
    said = [one for one in view.participants if one.branches or one.error]
    return view.state is not None or view.forgotten or bool(said)
