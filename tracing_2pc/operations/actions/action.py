"""The form of an action: declared once; terminal and browser only render it.

An `Action` declares a person's command and its arguments. A `PreparedAction` is that
command with the arguments given: it was looked up, can be shown, and can be done.
Nothing here changes anything before `PreparedAction.run`, and its result is a sentence
for a person and an object for a program.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from tracing_2pc.core.access import Role
from tracing_2pc.core.log_reader import OperatorLog
from tracing_2pc.core.model import TransactionRecord, check_application
from tracing_2pc.core.ports import Clock
from tracing_2pc.core.remote_participant import RemoteParticipant
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import Word
from tracing_2pc.inspection.actions import Advice
from tracing_2pc.protocol.recovery import RecoveryResult

Given: TypeAlias = Mapping[str, str]
"""Arguments as they were typed, by name. Missing ones are absent."""


class Reach(Protocol):
    """The resources of actions. Terminal and console open each at its first use."""

    @property
    def log(self) -> OperatorLog:
        """The decision log."""

    @property
    def participants(self) -> Mapping[str, RemoteParticipant]:
        """Those that the settings have an address of."""

    @property
    def settings(self) -> Settings:
        """The settings in force."""

    @property
    def clock(self) -> Clock:
        """The clock."""

    @property
    def deliver(self) -> Callable[[TransactionRecord], RecoveryResult]:
        """Sends one decision once, now, to all that have not acknowledged it."""

    def asking(self, names: Iterable[str]) -> contextlib.AbstractContextManager[object]:
        """Show the participants that are waited for, as long as that lasts."""

    def progress(self, text: str) -> None:
        """Show the progress of long work; the next text replaces it."""


class Done(NamedTuple):
    """The result of an act, or of a part of it; `well`: all of it is done."""

    text: str
    item: dict[str, Any] | None = None  # for programs; None: only persons are told
    well: bool = True
    more: tuple[str, ...] = ()  # lines that follow the text


@dataclasses.dataclass(frozen=True, slots=True)
class Preview:
    """The preview of an act, to which a person agrees."""

    advice: Advice  # its command, whether it is safe, effect and cost
    facts: tuple[tuple[str, str], ...] = ()  # what it is done to: a term and a text
    seen: tuple[object, ...] = ()  # what must still be so when it is done
    # Why nothing is left to do; it then only tells what has become of it.
    gone: str = ""
    report: Done | None = None  # the same as a report, of `--dry-run`


@dataclasses.dataclass(frozen=True, slots=True)
class PreparedAction:
    """An action for the arguments that were given.

    `run` does it, signed with a name and a reason, and yields the results, part by
    part. It raises as `Action.prepare` does.
    """

    given: Given
    title: str  # on its button
    number: str  # what a person types to agree, and `numbered` what that is
    numbered: str
    preview: Callable[[], Preview]
    run: Callable[[str, str], Iterable[Done]]
    first: str = ""  # what to know before `--yes`; else its effect


def fingerprint(act: PreparedAction, preview: Preview) -> str:
    """Return a digest of the preview that a person has agreed to: to detect changes."""
    advice = preview.advice
    agreed = (sorted(act.given.items()), advice.effect, advice.safe, *advice.cost)
    shown = repr((act.title, agreed, preview.seen))
    return hashlib.sha256(shown.encode("utf-8", "replace")).hexdigest()[:32]


FLAG: Final = ("yes",)
"""The choices of an argument that is an option without a value."""


@dataclasses.dataclass(frozen=True, slots=True)
class Argument:
    """A word of a command, or a field of a form."""

    name: str  # as in `before`: the option `--before`, unless it is positional
    about: str
    read: Callable[[str], object] = str  # raises `ValueError` for what it cannot be
    choices: tuple[str, ...] = ()  # what it can be; (): anything that `read` takes
    positional: bool = False
    required: bool = False
    exclusive: bool = False  # exactly one of an action's exclusive ones is given
    metavar: str | None = None
    default: str = ""
    # The browser takes it from nobody: a person there does not name addresses.
    terminal_only: bool = False

    @property
    def key(self) -> str:
        """Its name as argparse and forms have it."""
        return self.name.replace("-", "_")


class Consent(Word):
    """The consent that the terminal asks for. The browser always asks once more."""

    ASKED = "asked"  # by a question, or `--yes`
    NOT_ASKED = "not asked"  # it does only what processes do by themselves
    ONLY_BY_YES = "only by yes"  # without `--yes` it is shown, and never asked


class Reason(Word):
    """Whether a reason is kept with it, and the person's name."""

    NEEDED = "needed"
    POSSIBLE = "possible"
    NOT_KEPT = "not kept"


def _no_application(_given: Given) -> str | None:
    return None


@dataclasses.dataclass(frozen=True, slots=True)
class Action:
    """Something that a person can do, at the terminal and in the browser."""

    name: str  # the words of its command, as `outbox again`
    about: str  # in a line, without a capital and a full stop
    arguments: tuple[Argument, ...]
    # Looks it up and changes nothing. Raises what is wrong with the arguments, or
    # forbids it: `ValueError`, `ConfigurationError`, `ContractError`; else
    # `TwoPhaseError`.
    prepare: Callable[[Reach, Given], PreparedAction]
    title: str = ""  # of its form in the browser; "": only pages about a thing have it
    place: str = ""  # `application` or `participant`: whose page leads to its form
    reason: Reason = Reason.NEEDED
    consent: Consent = Consent.ASKED
    can_rehearse: bool = False  # `--dry-run` shows what would be done
    role: Role = Role.OPERATOR  # in the browser
    # Which application it is about, for tokens that are bound to one; None: to all of
    # them, or not to any.
    application: Callable[[Given], str | None] = _no_application
    examples: tuple[str, ...] = ()

    @property
    def slug(self) -> str:
        """Its name in an address."""
        return self.name.replace(" ", "-")

    def check(self, given: Given) -> None:
        """Raise `ValueError` for a missing argument, and for a wrong one."""
        for argument in self.arguments:
            text = given.get(argument.name, "")
            if text and argument.choices and text not in argument.choices:
                expected = " or ".join(argument.choices)
                raise ValueError(f"{argument.name}: expected {expected}")
            if text:
                argument.read(text)
            elif argument.required:
                raise ValueError(f"{argument.name}: say {argument.about}")
        exclusive = [argument.name for argument in self.arguments if argument.exclusive]
        if exclusive and sum(name in given for name in exclusive) != 1:
            raise ValueError(f"expected one of {', '.join(exclusive)}")

    def command(self, given: Given) -> str:
        """Return the command that does this."""
        words = ["tracing-2pc", self.name]
        for argument in self.arguments:
            if not (value := given.get(argument.name, "")):
                continue
            option = [] if argument.positional else [f"--{argument.name}"]
            words += [*option, *([] if argument.choices == FLAG else [value])]
        if self.reason is Reason.NEEDED:
            words.append("--reason …")
        return " ".join(words)


class Offer(NamedTuple):
    """An action that a page about a thing has a form of, which is filled in already."""

    action: Action
    given: Given
    title: str
    advice: Advice


def of_application(about: str, *, required: bool = True) -> Argument:
    """Return the argument that names an application."""
    return Argument("application", about, check_application, required=required)


def application_given(given: Given) -> str | None:
    """Return the application that was given as an argument, if it can be one."""
    return given.get("application")
