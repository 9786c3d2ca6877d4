"""`tracing-2pc await-launch`."""

from __future__ import annotations

import argparse
import time

from tracing_2pc.cli.arguments import DONE, LEFT
from tracing_2pc.cli.terminal import print_item
from tracing_2pc.core.errors import DecisionLogError
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import Decision
from tracing_2pc.operations.wiring import open_configured_log

_PAUSE = 1.0


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Wait until the transaction is decided; a log that is silent is asked again."""
    transaction = TransactionId.parse(options.transaction)
    with open_configured_log(settings, may_be_down=True) as log:
        while True:
            try:
                record = log.read(transaction)
            except DecisionLogError as error:
                if error.says_cure or error.transaction_id is not None:
                    raise
            else:
                decision = None if record is None else record.decision
                if record is None or decision is not None:
                    break
            time.sleep(_PAUSE)
    word = "not on record" if record is None else f"decided {decision}"
    print_item(options, {"transaction": str(transaction), "is": word}, word)
    return DONE if decision is Decision.COMMIT else LEFT
