"""`tracing-2pc init`."""

from __future__ import annotations

import argparse
from pathlib import Path

from tracing_2pc.cli.arguments import DONE
from tracing_2pc.cli.terminal import print_item
from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.model import check_application
from tracing_2pc.core.settings import Settings
from tracing_2pc.operations.init import init
from tracing_2pc.operations.wiring import open_configured_log


def run(options: argparse.Namespace) -> int:
    """Write missing files; or set where an application starts."""
    application, batch = options.application, options.from_batch
    if (application is None) != (batch is None):
        raise ConfigurationError("--application and --from-batch go together")
    if application is None:
        config = Path(options.config or "tpc.toml")
        given = Settings.load(
            config if config.exists() else None,
            log=options.log,
            participants=options.participants,
        )
        tokens = Path(options.tokens_file) if options.tokens_file else None
        for line in init(config, given, tokens):
            print_item(options, {"done": line}, line)
        return DONE
    check_application(application)
    if batch < 0:
        raise ConfigurationError("--from-batch: 0 or more")
    with open_configured_log(Settings.load(options.config, log=options.log)) as log:
        log.initialise(application, batch)
    line = f"{application} starts at batch {batch}"
    print_item(options, {"application": application, "done": line}, line)
    return DONE
