"""`tracing-2pc init`."""

from __future__ import annotations

import argparse
from pathlib import Path

from tracing_2pc.cli.arguments import DONE
from tracing_2pc.cli.terminal import tell
from tracing_2pc.errors import ConfigurationError
from tracing_2pc.model import check_application
from tracing_2pc.operations.recover import configured_log
from tracing_2pc.operations.setup import init
from tracing_2pc.settings import Settings


def run(options: argparse.Namespace) -> int:
    """Write what is missing; or say where an application starts."""
    if (options.application is None) != (options.from_batch is None):
        raise ConfigurationError("--application and --from-batch go together")
    if options.application is not None:
        return _start_at(options)
    config = Path(options.config or "tpc.toml")
    given = Settings.load(config if config.exists() else None, log=options.log)
    for line in init(config, given, Path(options.tokens_file)):
        tell(options, {"done": line}, line)
    return DONE


def _start_at(options: argparse.Namespace) -> int:
    check_application(options.application)
    if options.from_batch < 0:
        raise ConfigurationError("--from-batch: 0 or more")
    with configured_log(Settings.load(options.config, log=options.log)) as log:
        log.initialise(options.application, options.from_batch)
    line = f"{options.application} starts at batch {options.from_batch}"
    tell(options, {"application": options.application, "done": line}, line)
    return DONE
