"""The commands and their options."""

from __future__ import annotations

import argparse
import difflib
import importlib.metadata
import re
import time
from collections.abc import Callable
from typing import Final, NoReturn, TypeAlias, TypeVar

from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.settings import seconds
from tracing_2pc.core.states import TransactionState
from tracing_2pc.inspection.wording import parse_time
from tracing_2pc.operations.actions import ACTIONS
from tracing_2pc.operations.actions.action import (
    FLAG,
    Action,
    Argument,
    Consent,
    Reason,
)
from tracing_2pc.operations.actions.inbox import WHICH

DONE, LEFT, USAGE = 0, 1, 2

Read = TypeVar("Read")
Add: TypeAlias = Callable[[str, str], argparse.ArgumentParser]

_ABOUT: Final = "See what transactions do, and decide by hand what cannot go on."
_CODES: Final = """\
exit codes: 0 done, nothing is wrong; 1 something is left or wrong; 2 fix the call.
With --json: one object, or one per line; later releases only add fields.
Colours on a terminal only, and never with NO_COLOR.
manual: docs/cli.md; by `make docs-serve`, http://127.0.0.1:8000/cli.html"""

EXAMPLES: Final[dict[str, tuple[str, ...]]] = {
    "": ("check", "ls --unfinished", "explain orders.7.1", "outbox ls"),
    "ls": ("ls --unfinished", "ls --application orders --older-than 5m"),
    "show": ("show orders.7.1",),
    "explain": ("explain orders.7.1", "explain orders.7.1 --json"),
    "trace": ("trace orders.7.1", "trace orders.7", "trace orders.7.1 --json"),
    "check": (
        "check",
        "check --config /etc/orders/tpc.toml",
        "check --deep --journal ledger=env:LEDGER_DATABASE",
    ),
    "advise": ("advise --application orders --recover-within 60s",),
    "watch": ("watch --recover --listen 127.0.0.1:9095", "watch --once"),
    "console": ("console --listen 127.0.0.1:8090 --tokens-file tokens",),
    "outbox": ("outbox ls --application orders",),
    "inbox": ("inbox ls --inbox env:INBOX_DATABASE",),
    "launch": ("launch job.yaml --dry-run", "launch job.yaml --again"),
    "serve": (
        "serve ledger --listen 127.0.0.1:8081",
        "serve ledger --nats nats://broker:4222/ledger",
    ),
    "await-launch": ("await-launch totals-1f0c93ab.4.1",),
    "operator": ("operator manifests --image registry:5000/tpc@sha256:…",),
    "new": ("new my-pipeline",),
    "init": (
        "init",
        "init --participants ledger=http://127.0.0.1:8081",
        "init --application orders --from-batch 42",
    ),
}
"""What a person may type, by command."""
for _action in ACTIONS:
    _command = _action.name.partition(" ")[0]
    EXAMPLES[_command] = (*EXAMPLES.get(_command, ()), *_action.examples)


class _Parser(argparse.ArgumentParser):
    """Names the word that was probably meant."""

    def error(self, message: str) -> NoReturn:
        match = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if match is not None:
            words = [word.strip("' ") for word in match[2].split(",")]
            for near in difflib.get_close_matches(match[1], words, n=1):
                message = f"{message}: did you mean {near!r}?"
        super().error(message)


def _epilog(command: str) -> str:
    lines = [f"  tracing-2pc {example}" for example in EXAMPLES[command]]
    return "\n".join(["examples:", *lines, "", _CODES])


def parser() -> _Parser:
    """Return the parser; `command` is the name of the module that runs it."""
    made = _Parser(
        prog="tracing-2pc",
        description=_ABOUT,
        epilog=_epilog(""),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = importlib.metadata.version("tracing-2pc")
    made.add_argument("--version", action="version", version=version)
    commands = made.add_subparsers(metavar="command", required=True, dest="command")
    common = _common()

    def add(name: str, about: str) -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            parents=[common],
            help=about,
            description=f"{about[0].upper()}{about[1:]}.",
            epilog=_epilog(name),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    _add_reading(add)
    groups = {"": add, "outbox": _add_outbox(add), "inbox": _add_inbox(add)}
    for action in ACTIONS:
        group, _, word = action.name.rpartition(" ")
        _add_action(groups[group](word, action.about), action)
    _add_keeping(add)
    _add_launching(add)
    _add_serving(add)
    # It reads its options itself.
    about = "stream real data through crashes, and judge it"
    commands.add_parser("demo", add_help=False, help=about)
    return made


_TRANSACTION = "<application>.<batch>.<attempt>"


def _common(default: str | None = None) -> _Parser:
    """Return the options of every command."""
    common = _Parser(add_help=False, argument_default=default)
    common.add_argument("--config", help="settings file; default: tpc.toml")
    common.add_argument("--log", help="URL of the decision log, or env:NAME")
    common.add_argument(
        "--json", action="store_true", help="for programs: one object per line"
    )
    return common


def _add_action(command: argparse.ArgumentParser, action: Action) -> None:
    """Add what an action takes, as it declares it."""
    command.set_defaults(does=action)
    either = None
    if any(argument.exclusive for argument in action.arguments):
        either = command.add_mutually_exclusive_group(required=True)
    for argument in action.arguments:
        _add_argument(either if either and argument.exclusive else command, argument)
    if action.reason is not Reason.NOT_KEPT:
        is_asked = action.consent is Consent.ASKED
        about = "one line, kept with it" + ("" if is_asked else "; with --yes")
        required = is_asked and action.reason is Reason.NEEDED
        command.add_argument("--reason", required=required, default="", help=about)
    if action.can_rehearse:
        about = "only say what would be done"
        command.add_argument("--dry-run", action="store_true", help=about)
    if action.consent is Consent.ASKED:
        about = "don't ask; needed without a terminal"
        command.add_argument("--yes", help=about, action="store_true")
    elif action.consent is Consent.ONLY_BY_YES:
        about = "write it; without, only say what would be written"
        command.add_argument("--yes", help=about, action="store_true")


def _add_argument(
    command: argparse._ActionsContainer,
    argument: Argument,
) -> None:
    def check(text: str) -> str:
        argument.read(text)
        return text

    name, about, read = f"--{argument.name}", argument.about, _argument_type(check)
    metavar = argument.metavar
    if argument.positional:
        command.add_argument(argument.key, help=about, type=read, metavar=metavar)
    elif argument.choices == FLAG:
        command.add_argument(name, help=about, action="store_const", const=FLAG[0])
    else:
        command.add_argument(
            name,
            help=about,
            type=read,
            choices=argument.choices or None,
            metavar=metavar,
            required=argument.required,
            default=argument.default or None,
        )


def _add_reading(add: Add) -> None:
    ls = add("ls", "list transactions, what is unfinished first, and orphans")
    ls.add_argument("--application", help="only of this one")
    ls.add_argument("--state", choices=[str(state) for state in TransactionState])
    ls.add_argument("--unfinished", action="store_true", help="nothing finished")
    ls.add_argument("--batch", type=int, help="only of this number")
    ls.add_argument("--participant", metavar="NAME", help="only where it takes part")
    ls.add_argument(
        "--older-than", type=_argument_type(seconds), metavar="AGE", help="as in 5m"
    )
    about = "begun since: as in 2h, or 2026-01-31T18:05, in UTC"
    ls.add_argument(
        "--since",
        type=_argument_type(lambda text: parse_time(text, time.time())),
        metavar="TIME",
        help=about,
    )
    ls.add_argument("--limit", type=_count, default=100, help="default: 100")
    about = "what finished before this one, of its application: to page on"
    ls.add_argument(
        "--beyond", type=_argument_type(TransactionId.parse), metavar="ID", help=about
    )
    ls.add_argument("--log-only", action="store_true", help="ask no participant")

    for name, about in (
        ("show", "explain one transaction, with all that is known of it"),
        ("explain", "explain what is wrong with one, and what is safe"),
    ):
        newest = f"{_TRANSACTION}; without the attempt, the newest"
        add(name, about).add_argument("transaction", metavar="ID", help=newest)
    trace = add("trace", "show where its time went, as a tree of spans in words")
    about = f"{_TRANSACTION}; without the attempt, the newest; or the id of a trace"
    trace.add_argument("transaction", metavar="ID", help=about)
    check = add("check", "hold settings, log and participants against what must be")
    about = "hold all that is on record against the protocol, too; reads the whole log"
    check.add_argument("--deep", action="store_true", help=about)
    check.add_argument(
        "--journal",
        action="append",
        type=_named,
        metavar="NAME=URL",
        help="--deep: a participant, and the database of its journal, or env:NAME of a "
        "variable that holds its URL; repeatable",
    )
    about = "--deep: a file that TPC_TRACE_FILE named; repeatable"
    check.add_argument("--spans", action="append", metavar="FILE", help=about)

    advise = add("advise", "say which trigger interval the records speak for")
    advise.add_argument("--application", required=True, help="its transactions")
    advise.add_argument(
        "--recover-within",
        type=_argument_type(seconds),
        default=60.0,
        metavar="SECONDS",
        help="after a restart the stream keeps step again in so long; default: 60",
    )
    advise.add_argument(
        "--spark-overhead",
        type=_argument_type(seconds),
        default=0.5,
        metavar="SECONDS",
        help="what Spark itself does between two batches, at most; default: 0.5",
    )

    watch = add("watch", "report what is stuck, and why; without Spark")
    watch.add_argument(
        "--recover", action="store_true", help="and finish what is decided, as recover"
    )
    watch.add_argument("--once", action="store_true", help="one sweep, then end")
    watch.add_argument("--listen", help="serve /metrics there, as in 127.0.0.1:9095")

    console = add("console", "see and resolve transactions in a browser")
    console.add_argument(
        "--listen", default="127.0.0.1:8090", help="default: 127.0.0.1:8090"
    )
    console.add_argument("--tokens-file", help="who may log in; default: the setting")


def _add_outbox(add: Add) -> Add:
    outbox = add(
        "outbox", "list what a partner did not take; send it again, or drop it"
    )
    actions = outbox.add_subparsers(metavar="action", required=True, dest="action")
    common = _common(argparse.SUPPRESS)  # the command has them, too

    def add_action(word: str, about: str) -> argparse.ArgumentParser:
        return actions.add_parser(word, parents=[common], help=about)

    ls = add_action("ls", "list refused requests")
    ls.add_argument("--application", help="only of this one")
    ls.add_argument("--limit", type=_count, default=100, help="default: 100")
    ls.add_argument("--dropped", action="store_true", help="those that were dropped")
    ls.add_argument("--participant", metavar="NAME", help="only at this one")
    return add_action


def _add_inbox(add: Add) -> Add:
    inbox = add("inbox", "list who reads a gateway's inbox; give one up; keep less")
    actions = inbox.add_subparsers(metavar="action", required=True, dest="action")
    common = _common(argparse.SUPPRESS)

    def add_action(word: str, about: str) -> argparse.ArgumentParser:
        return actions.add_parser(word, parents=[common], help=about)

    ls = add_action("ls", "list its readers")
    for argument in WHICH:
        _add_argument(ls, argument)
    return add_action


def _add_keeping(add: Add) -> None:
    new = add("new", "write a project that runs at once: job, settings, tests")
    about = "a new or empty folder; its name is that of the application"
    new.add_argument("folder", help=about)
    about = "the job writes to two services, which are there too, and in containers"
    new.add_argument("--services", action="store_true", help=about)

    init = add("init", "write settings and tokens, make the log's tables")
    init.add_argument("--application", help="a query that already ran without us")
    init.add_argument("--from-batch", type=int, help="its next batch id")
    about = "addresses for the settings file, as in ledger=http://127.0.0.1:8081,…"
    init.add_argument("--participants", metavar="NAME=URL,…", help=about)
    about = "where tokens are written; default: tokens, where a service takes part"
    init.add_argument("--tokens-file", metavar="FILE", help=about)


def _add_launching(add: Add) -> None:
    launch = add("launch", "build and start a job in one transaction, or nothing")
    launch.add_argument("file", help="what is launched, as in docs/launch.md")
    about = "what was rolled back, although the file is the same"
    launch.add_argument("--again", help=about, action="store_true")
    about = "only say what would be created"
    launch.add_argument("--dry-run", help=about, action="store_true")
    about = "wait until a launch is decided: 0 committed, 1 not"
    add("await-launch", about).add_argument("transaction", help=_TRANSACTION)
    operator = add("operator", "launch what resources of Kubernetes say")
    actions = operator.add_subparsers(metavar="action", required=True, dest="action")
    common = _common(argparse.SUPPRESS)
    look = actions.add_parser("run", parents=[common], help="look, and launch")
    about = "write the kind of resource, the rights, and the operator's Deployment"
    manifests = actions.add_parser("manifests", parents=[common], help=about)
    manifests.add_argument("--image", required=True, help="the operator's own")
    for action in (look, manifests):
        about = "whose resources; default: default"
        action.add_argument("--namespace", default="default", help=about)


def _add_serving(add: Add) -> None:
    serve = add("serve", "serve a participant that the settings name by its database")
    serve.add_argument("name", help="as `participants` in the settings has it")
    way = serve.add_mutually_exclusive_group()
    way.add_argument("--grpc", action="store_true", help="by gRPC, not by HTTP")
    way.add_argument("--nats", metavar="URL", help="by NATS: nats://host:4222/name")
    about = "address:port; default: 127.0.0.1:8081, with --grpc 127.0.0.1:50051"
    serve.add_argument("--listen", help=about)
    about = "files of the certificate and of its key: https:// or grpcs://"
    serve.add_argument("--tls", nargs=2, metavar=("CERTIFICATE", "KEY"), help=about)


def _argument_type(read: Callable[[str], Read]) -> Callable[[str], Read]:
    """Have argparse print the message of a reader's `ValueError`."""

    def reading(text: str) -> Read:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return reading


def _named(text: str) -> tuple[str, str]:
    name, equals, url = text.partition("=")
    if not (name and equals and url):
        raise argparse.ArgumentTypeError("expected NAME=URL")
    return name, url


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: expected a number from 1")
    return int(text)
