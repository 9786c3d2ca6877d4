"""`tracing-2pc init`: settings, tokens and schema, without overwriting anything."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.remote_participant import EMBEDDED
from tracing_2pc.core.settings import Settings
from tracing_2pc.store import open_log

DEFAULT_LOG: Final = "sqlite:///state/decisions.db"
DEFAULT_TOKENS: Final = "tokens"
ROLES: Final = ("job", "operator", "viewer")

_EXAMPLE: Final = {
    "ledger": "http://127.0.0.1:8081",
    "notifier": "http://127.0.0.1:8082",
}

_TEMPLATE: Final = """\
# Settings of tracing_2pc. TPC_<NAME> in the environment wins over this file,
# arguments and options win over both.

# The decision log. Keep it as long as the checkpoint. A URL with a password does not
# belong here: write "env:TPC_LOG_URL" and put it into that variable.
log = "{log}"

# The only source of participants' addresses, by name.
{participants}

{tokens}# transaction_timeout = "15m"   # of a job: from begin to decision; 0 = none
# driver_path_bytes = 16777216  # a batch after one so small is written by the driver
# request_timeout = "5s"        # to connect to a participant, and for each read
# on_pending = "wait"           # or "fail": raise after inline_tries
# inline_tries = 10
# keep_finished = "7d"          # then finished transactions are forgotten

# Links that `tracing-2pc show` prints, with {{trace}} {{transaction}} {{application}}.
# links = {{jaeger = "http://127.0.0.1:16686/trace/{{trace}}"}}

# What the console calls this installation, on each page and where one logs in.
# environment = "production"
"""

_TOKENS: Final = """\
# The tokens that participants accept, one `role token [application]` a line.
tokens_file = "{tokens}"

# The token that `tracing-2pc recover` sends: env:NAME or file:PATH.
# token = "env:TPC_TOKEN"

"""


def init(config: Path, settings: Settings, tokens: Path | None = None) -> Iterator[str]:
    """Write missing files and tables; yield a line about each, never a secret.

    Tokens are written to `tokens`, else to the file that the settings name, as those of
    a service do; else only where a service is among the participants.

    Raises:
        ConfigurationError: a URL that cannot be a log's, and nothing was written; or a
            file that could not be.
        DecisionLogError: the log could not be reached; nothing was written.
    """
    log = settings.log or DEFAULT_LOG
    open_log(log).close()  # first: a URL that it refuses must not get into a file
    schemes = {url.partition(":")[0] for url in settings.participants.values()}
    has_services = not schemes or bool(schemes - EMBEDDED)
    if tokens is None and (has_services or settings.tokens_file):
        tokens = Path(settings.tokens_file or DEFAULT_TOKENS)
    of_tokens = "" if tokens is None else _TOKENS.format(tokens=tokens)
    values = {"log": log, "tokens": of_tokens, "participants": _line_of(settings)}
    yield _write(config, _TEMPLATE.format(**values), 0o644)
    ready = f"schema is ready in {'the log' if log.startswith('env:') else log}"
    if tokens is None:
        yield ready
        return
    lines = [f"{role} {secrets.token_urlsafe(32)}" for role in ROLES]
    comment = "# role token [application]; two lines of one role while you rotate\n"
    yield _write(tokens, comment + "\n".join(lines) + "\n", 0o600)
    yield ready
    yield f"the job's token: export TPC_TOKEN=$(sed -n 's/^job //p' {tokens})"


def _line_of(settings: Settings) -> str:
    """Return the line of the addresses: a comment where none are known."""
    known = settings.participants or _EXAMPLE
    keys = {key: f'"{key}"' if "/" in key else key for key in known}
    urls = ", ".join(f'{keys[key]} = "{url}"' for key, url in known.items())
    comment = "" if settings.participants else "# "
    return f"{comment}participants = {{{urls}}}"


def _write(path: Path, text: str, mode: int) -> str:
    """Make a file, or leave none: half a one would be kept by the next try."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
        try:
            with os.fdopen(file, "w", encoding="utf-8") as out:
                out.write(text)
        except OSError:
            path.unlink(missing_ok=True)
            raise
    except FileExistsError:
        return f"kept {path}"
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    return f"wrote {path}"
