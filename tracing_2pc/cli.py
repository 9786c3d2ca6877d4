"""The command line. Exit codes: 0 done, 1 something is left to do, 2 fix the call."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tracing_2pc.errors import ConfigurationError, ContractError, TwoPhaseError
from tracing_2pc.model import TransactionId, TransactionRecord, check_application
from tracing_2pc.settings import Settings
from tracing_2pc.states import UNFINISHED, Decision

DONE, LEFT, USAGE = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command."""
    parser = _parser()
    if not (arguments if arguments is not None else sys.argv[1:]):
        parser.print_help()
        return USAGE
    options, rest = parser.parse_known_args(arguments)
    if rest and options.run is not _demo:
        parser.error(f"unrecognised: {' '.join(rest)}")
    options.rest = rest
    try:
        run: Callable[[argparse.Namespace], int] = options.run
        return run(options)
    except (ConfigurationError, ContractError, ValueError) as error:
        print(f"tracing-2pc: {error}", file=sys.stderr)
        return USAGE
    except TwoPhaseError as error:
        print(f"tracing-2pc: {error}", file=sys.stderr)
        return LEFT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tracing-2pc", description=__doc__)
    version = importlib.metadata.version("tracing-2pc")
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(metavar="command", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--config", help="settings file; default: tpc.toml")
    common.add_argument("--log", help="URL of the decision log, or env:NAME")
    common.add_argument("--json", action="store_true", help="one object per line")

    demo = commands.add_parser(
        "demo", add_help=False, help="stream real data through crashes, and judge it"
    )
    demo.set_defaults(run=_demo)

    init = commands.add_parser(
        "init", parents=[common], help="write settings and tokens, make the schema"
    )
    init.add_argument("--application", help="a query that already ran without us")
    init.add_argument("--from-batch", type=int, help="its next batch id")
    init.add_argument("--tokens-file", default="tokens", help="default: tokens")
    init.set_defaults(run=_init)

    recover = commands.add_parser(
        "recover", parents=[common], help="finish what is decided, without Spark"
    )
    recover.add_argument("--application", help="only this one")
    recover.set_defaults(run=_recover)

    watch = commands.add_parser(
        "watch", parents=[common], help="say what is stuck, and why; without Spark"
    )
    watch.add_argument(
        "--recover", action="store_true", help="and finish what is decided, as recover"
    )
    watch.add_argument("--once", action="store_true", help="one sweep, then end")
    watch.add_argument("--listen", help="serve /metrics there, as in 127.0.0.1:9095")
    watch.set_defaults(run=_watch)

    resolve = commands.add_parser(
        "resolve", parents=[common], help="decide by hand what is quarantined"
    )
    resolve.add_argument("transaction", help="<application>.<batch>.<attempt>")
    wanted = resolve.add_mutually_exclusive_group(required=True)
    wanted.add_argument(
        "--commit",
        dest="wanted",
        action="store_const",
        const="commit",
        help="quarantined and decided commit: deliver it again",
    )
    wanted.add_argument(
        "--abort",
        dest="wanted",
        action="store_const",
        const="abort",
        help="undecided: decide abort; quarantined and decided abort: deliver it again",
    )
    wanted.add_argument(
        "--conclude",
        dest="wanted",
        choices=["mixed", "hazard"],
        help="close what cannot be made whole, and say how it ended",
    )
    resolve.add_argument("--reason", required=True, help="kept in the audit")
    resolve.set_defaults(run=_resolve)
    return parser


def _settings(options: argparse.Namespace) -> Settings:
    return Settings.load(options.config, log=options.log)


def _demo(options: argparse.Namespace) -> int:
    from tracing_2pc.operations.services import run_service

    return run_service("demo", options.rest)


def _init(options: argparse.Namespace) -> int:
    from tracing_2pc.operations.recover import configured_log
    from tracing_2pc.operations.setup import init

    config = Path(options.config or "tpc.toml")
    if (options.application is None) != (options.from_batch is None):
        raise ConfigurationError("--application and --from-batch go together")
    if options.application is None:
        given = Settings.load(config if config.exists() else None, log=options.log)
        for line in init(config, given, Path(options.tokens_file)):
            _say(options, {"done": line}, line)
        return DONE
    check_application(options.application)
    if options.from_batch < 0:
        raise ConfigurationError("--from-batch: 0 or more")
    with configured_log(_settings(options)) as log:
        log.initialise(options.application, options.from_batch)
    line = f"{options.application} starts at batch {options.from_batch}"
    _say(options, {"application": options.application, "done": line}, line)
    return DONE


def _recover(options: argparse.Namespace) -> int:
    from tracing_2pc.operations.recover import configured_log, recover

    settings, left, seen = _settings(options), 0, 0
    with configured_log(settings) as log:
        for item in recover(log, settings, options.application):
            seen += 1
            left += not item.done
            shown = _shown(item.record)
            _say(
                options,
                {**shown, "done": item.done, "remark": item.remark},
                f"{shown['transaction_id']:<44} {item.remark}",
            )
    if not options.json:
        print(f"{seen - left} finished, {left} left" if seen else "nothing unfinished")
    return LEFT if left else DONE


def _watch(options: argparse.Namespace) -> int:
    from tracing_2pc.operations.recover import configured_log
    from tracing_2pc.operations.sweep import Sweep, items, line
    from tracing_2pc.operations.watch import How, watch

    def tell(sweep: Sweep) -> None:
        for item in items(sweep):
            _say(options, item, line(item))

    settings = _settings(options)
    how = How(recover=options.recover, once=options.once, listen=options.listen)
    with configured_log(settings) as log:
        last = watch(log, settings, how, tell)
    if options.once and last.clean and not options.json:
        print("nothing is wrong")
    return DONE if last.clean or not options.once else LEFT


def _resolve(options: argparse.Namespace) -> int:
    from tracing_2pc.operations.recover import configured_log
    from tracing_2pc.operations.resolve import resolve

    wanted = options.wanted
    decision = Decision(wanted) if wanted in {"commit", "abort"} else wanted
    with configured_log(_settings(options)) as log:
        record = resolve(
            log,
            TransactionId.parse(options.transaction),
            wanted=decision,
            reason=options.reason,
        )
    hint = ""
    if record.state in UNFINISHED:
        hint = "; `tracing-2pc recover` delivers it"
    elif record.pending:
        hint = (
            f"; not acknowledged by {', '.join(record.pending)}: what they prepared "
            "for it may still be there"
        )
    _say(options, _shown(record), f"{record.id} is {record.state}{hint}")
    return DONE


def _shown(record: TransactionRecord) -> dict[str, Any]:
    return {
        "transaction_id": str(record.id),
        "state": str(record.state),
        "decision": record.decision and str(record.decision),
        "pending": list(record.pending),
    }


def _say(options: argparse.Namespace, item: dict[str, Any], line: str) -> None:
    print(json.dumps(item) if options.json else line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
