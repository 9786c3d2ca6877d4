"""`tracing-2pc launch`."""

from __future__ import annotations

import argparse

from tracing_2pc.cli.arguments import DONE
from tracing_2pc.cli.terminal import print_item
from tracing_2pc.core.settings import Settings
from tracing_2pc.launch import LaunchFile, Phase, dry_run, launch
from tracing_2pc.operations.wiring import open_configured_log, start_telemetry


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Launch the content of the file, everywhere or nowhere; print each step."""
    file = LaunchFile.read(options.file)
    with open_configured_log(settings) as log:
        if options.dry_run:
            for line in dry_run(file, log):
                part, _, where = line.partition(" ")
                print_item(options, {"what": part, "where": where.strip()}, line)
            return DONE
        start_telemetry()

        def say(_phase: Phase, line: str) -> None:
            if not options.json:
                print(line, flush=True)

        done = launch(file, log, settings, again=options.again, say=say)
    about = {"transaction": str(done.transaction), "replay": done.replay}
    word = "was launched before: nothing to do" if done.replay else "committed"
    print_item(options, about, f"{done.transaction}: {word}")
    return DONE
