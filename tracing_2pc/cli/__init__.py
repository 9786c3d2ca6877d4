"""The command line: a module of this package for each command."""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Final

from tracing_2pc.cli.arguments import DONE, LEFT, USAGE, parser
from tracing_2pc.cli.terminal import safe
from tracing_2pc.core.errors import (
    ConfigurationError,
    ContractError,
    DecisionLogError,
    TwoPhaseError,
)
from tracing_2pc.core.settings import Settings, without_secrets
from tracing_2pc.tracing.sdk.log_records import write_to_stderr

__all__ = ["main"]

_EXTRAS: Final = {
    **{name: name for name in ("console", "demo", "launch")},
    "operator": "launch",
    **dict.fromkeys(("grpc", "grpc_health", "grpc_reflection", "google"), "grpc"),
    "nats": "nats",
}
"""The extra that has a package, or what a command needs; else it is `participant`."""

COLLECT_AFTER: Final = 50_000
"""New objects after which Python looks for cycles. A command reads thousands of
transactions, which are kept until it ends: to look through them after each 700 new
objects, as Python does it, took a quarter of the CPU time of `ls` and of a sweep."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    if arguments is None:  # as a program: the process is ours alone
        gc.set_threshold(COLLECT_AFTER)
    given = parser()
    if not (arguments if arguments is not None else sys.argv[1:]):
        given.print_help()
        return USAGE
    options, rest = given.parse_known_args(arguments)
    if rest and options.command != "demo":
        given.error(f"unrecognised: {safe(' '.join(rest))}")
    options.rest = rest
    write_to_stderr()
    try:
        action = getattr(options, "does", None)
        name = "acting" if action else options.command.replace("-", "_")
        module = importlib.import_module(f"tracing_2pc.cli.{name}")
        code: int
        if action is not None:
            code = module.run(options, action)
        elif options.command in {
            "init",
            "new",
            "demo",
            "inbox",
        }:  # they need no settings
            code = module.run(options)
        else:
            code = module.run(options, Settings.load(options.config, log=options.log))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader wants the first lines only
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except KeyboardInterrupt:
        return _ended("interrupted; what is on record stays", LEFT)
    except (ConfigurationError, ContractError, ValueError) as error:
        return _ended(error, USAGE)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("tracing_2pc"):
            raise
        package = (error.name or "").partition(".")[0]
        of_command = _EXTRAS.get(options.command, "participant")
        extra = _EXTRAS.get(package, of_command)
        needs = f"`tracing-2pc {options.command}` needs {error.name}"
        return _ended(f"{needs}: pip install 'tracing-2pc[{extra}]'", USAGE)
    except DecisionLogError as error:
        # About one record: then the log can be read.
        if error.transaction_id is None and not error.says_cure:
            findings = importlib.import_module("tracing_2pc.inspection.findings")
            cure = findings.CURE_OF_LOG
            error = DecisionLogError(
                f"the decision log cannot be reached: {error}: {cure}"
            )
        return _ended(error, LEFT)
    except TwoPhaseError as error:
        return _ended(error, LEFT)
    return code


def _ended(error: object, code: int) -> int:
    print(f"tracing-2pc: {safe(without_secrets(str(error)), 2000)}", file=sys.stderr)
    return code
