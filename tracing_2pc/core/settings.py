"""Settings: `tpc.toml`, then `TPC_*`, then arguments; the later one wins.

They are checked together, because each of them alone is always plausible.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

from tracing_2pc.core.addresses import addresses_of, split_address
from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.links import check_link
from tracing_2pc.core.remote_participant import EMBEDDED, has_transport, no_transport

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)")


def seconds(value: str | float) -> float:
    """Read a duration: text such as `10s`, `15m`, `7d`; from Python, seconds too.

    A number that is written without a unit is refused: 7 may mean days.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    text = value.strip() if isinstance(value, str) else ""
    match = _DURATION.fullmatch("0s" if text == "0" else text)
    if match is None:
        raise ValueError(f"{value!r}: expected a duration such as 10s, 15m or 7d")
    return float(match[1]) * _UNITS[match[2]]


def check_name(name: str, of: str = "participant") -> str:
    """Return a name as it may stand in a label or a line, or raise `ValueError`."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]{0,39}", name):
        # A URL without a name may hold a password.
        shown = "" if ":" in name else f" {name[:60]!r}"
        raise ValueError(
            f"{of} name{shown}: use 1 to 40 letters, digits, dashes "
            "and underscores, starting with a letter"
        )
    return name


def adds_columns(evolve: str | None) -> bool:
    """Whether an argument `evolve` lets columns be added to a table.

    Raises:
        ConfigurationError: it is neither None nor "add".
    """
    if evolve not in (None, "add"):
        raise ConfigurationError('evolve: "add" is the only value that it has')
    return evolve is not None


def check_url(url: str) -> str:
    """Return a participant's address without a trailing slash, or raise `ValueError`.

    A password in it would be pickled into Spark's files and pages: refused. Other
    faults of one without a service are raised by `open_participant`.
    """
    if url.partition(":")[0].lower() in EMBEDDED:
        if not url.isprintable() or _IN_URL.search(unquote(url)):
            raise ValueError(
                "an address is printable, and must not hold a password: use passfile=, "
                "service= or url_file="
            )
        return url
    parts = split_address(url)
    if not parts.scheme or not parts.hostname:
        raise ValueError("expected http://host:port or https://host:port")
    if not has_transport(parts.scheme):
        raise ValueError(no_transport(url))
    if parts.query or parts.fragment:
        raise ValueError("a base URL has no query and no fragment")
    return url.rstrip("/")


def _participants(value: Any) -> dict[str, str]:
    urls = _named(value, '{name = "http://..."}, or name=http://...,...')
    return {_check_key(key): check_url(url) for key, url in urls.items()}


def _check_key(key: str) -> str:
    """Return `name` or `application/name`, or raise `ValueError`."""
    application, slash, name = key.rpartition("/")
    if slash and not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,39}", application):
        # A URL without a name may hold a password.
        shown = "" if ":" in key else f" {key[:60]!r}"
        raise ValueError(f"participant{shown}: expected name or application/name")
    check_name(name)
    return key


def _links(value: Any) -> dict[str, str]:
    urls = _named(value, '{name = "http://…/{trace}"}, or name=http://…,…')
    return {check_name(n, "link"): check_link(url) for n, url in urls.items()}


def _trace_apis(value: Any) -> dict[str, str]:
    urls = _named(value, '{name = "http://…"}, or name=http://…,…')
    if placed := [name for name, url in urls.items() if "{" in url]:
        raise ValueError(f"{placed[0]}: expected a base URL, with nothing in braces")
    return {check_name(n, "link"): check_link(u).rstrip("/") for n, u in urls.items()}


def _named(value: Any, form: str) -> dict[str, str]:
    """Read names and URLs; a part that is neither is refused, not left out."""
    if isinstance(value, str):
        parts = [part.split("=", 1) for part in value.split(",") if part.strip()]
        value = dict(parts) if all(len(part) == 2 for part in parts) else None
    if not isinstance(value, Mapping):
        raise ValueError(f"expected {form}; in text a comma in an address is %2C")
    return {str(name): str(url) for name, url in value.items()}


def _pending(value: Any) -> str:
    if value not in {"wait", "fail"}:
        raise ValueError(f"{value!r}: expected wait or fail")
    return str(value)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not re.fullmatch(r"-?[0-9]+", str(value).strip()):
        raise ValueError(f"{value!r}: expected a whole number")
    return int(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r}: expected text")
    return value


def _reference(value: Any) -> str:
    if not is_reference(text := _text(value)):  # it may hold a password: not shown
        raise ValueError("expected env:NAME or file:PATH, which holds the URL")
    return text


def _label(value: Any) -> str:
    text = _text(value).strip()
    if not 0 < len(text) <= 40 or not text.isprintable():
        raise ValueError(f"{text[:60]!r}: expected a name of 1 to 40 characters")
    return text


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """The settings in force. Durations are in seconds, sizes in bytes."""

    # SQLAlchemy URL of the decision log, or `env:NAME` to read it from there.
    log: str | None = None
    # Name to base URL; the only source of addresses. `application/name` is for that
    # application, instead of `name`.
    participants: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # Reference to the job's token: `env:NAME` or `file:PATH`.
    token: str = "env:TPC_TOKEN"  # noqa: S105 - a reference, not a secret
    tokens_file: str | None = None  # the tokens that a participant accepts
    # `wait` for missing acknowledgements, or `fail` after the tries.
    on_pending: str = "wait"
    # The participant that keeps the rows which others refuse: else they abort a batch.
    rejects: str | None = None
    rejects_at_most: int = 100  # rows of a batch; more abort it
    # From begin to decision; warns at 0.8. The job's goes on record at begin; that of
    # who watches or recovers does not count. 0 means none: then no sweep aborts it,
    # only the next start of its query or a person.
    transaction_timeout: float = 900.0
    # A batch is written by the driver itself if the one before it came to at most so
    # many bytes in Arrow, all routes together; 0 means never.
    driver_path_bytes: int = 16 * 1024 * 1024
    request_timeout: float = 5.0  # to connect, and for each read
    inline_tries: int = 10  # how often a commit is sent before it is reported
    # Mean wait before the second try is half of it; it doubles.
    backoff_base: float = 1.0
    backoff_cap: float = 60.0  # the longest wait between two tries
    stuck_after: float = 300.0  # unfinished for so long is stuck (a warning)
    stuck_critical: float = 900.0  # unfinished for so long is critical
    orphan_after: float = 300.0  # prepared and unaccounted for so long is orphaned
    # A branch must have been seen so long before anything is said.
    safety_interval: float = 20.0
    sweep: float = 30.0  # pause between two sweeps of the watcher
    pause: float = 10.0  # pause between the two looks of one sweep
    # Finished records are kept so long, then forgotten.
    keep_finished: float = 7 * 86400.0
    # Name to the template of a link to a transaction in another tool.
    links: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # Where traces are asked for, by the name of a link that only a browser can reach.
    trace_apis: Mapping[str, str] = dataclasses.field(default_factory=dict)
    environment: str | None = None  # what a person calls this: on each page, at log-in
    # Reference to the URL of a gateway's inbox: `env:NAME` or `file:PATH`.
    inbox: str | None = None
    origins: Mapping[str, str] = dataclasses.field(
        default_factory=dict, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        for smaller, larger in _ORDER:
            if not getattr(self, smaller) < getattr(self, larger):
                raise ConfigurationError(
                    f"{self._shown(larger)} must be larger than {self._shown(smaller)}:"
                    " change one of them"
                )
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise ConfigurationError(
                    f"{self._shown(name)} must be at least {least:g}"
                )
        if self.backoff_base > self.backoff_cap:
            raise ConfigurationError(
                f"{self._shown('backoff_cap')} must be at least "
                f"{self._shown('backoff_base')}: change one of them"
            )
        if 0 < self.transaction_timeout <= self.request_timeout:
            raise ConfigurationError(
                f"{self._shown('transaction_timeout')} must be larger than "
                f"{self._shown('request_timeout')}, or 0 for none"
            )

    def addresses_of(self, application: str) -> dict[str, str]:
        """Return the addresses of an application's participants, by name."""
        return addresses_of(self.participants, application)

    def with_arguments(self, **arguments: Any) -> Settings:
        """Return these settings with what a caller has given: not None, nor empty."""
        given = {n: v for n, v in arguments.items() if v not in (None, "")}
        return dataclasses.replace(self, **given)

    def _shown(self, name: str) -> str:
        return f"{name} ({getattr(self, name):g}, {self.origin(name)})"

    def origin(self, name: str) -> str:
        """Return where a value came from."""
        return self.origins.get(name, "default")

    @classmethod
    def load(
        cls,
        config: str | Path | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        **arguments: Any,
    ) -> Settings:
        """Read the file, the environment and the arguments; None is not given.

        Without `config`, `TPC_CONFIG`, `tpc.toml` or `[tool.tracing_2pc]` of
        `pyproject.toml` in the working directory is read, if there is one.

        Raises:
            ConfigurationError: an unknown name, a value of the wrong kind, or two
                values that contradict each other. Names both and where they are from.
        """
        env = os.environ if environ is None else environ
        chosen = config or env.get("TPC_CONFIG")
        values: dict[str, Any] = {}
        origins: dict[str, str] = {}
        for origin, source in (
            _file(chosen),
            ("environment", _environment(env)),
            ("argument", {k: v for k, v in arguments.items() if v is not None}),
        ):
            for name, raw in source.items():
                shown = f"TPC_{name.upper()}" if origin == "environment" else origin
                if name not in _READ:
                    known = ", ".join(sorted(_READ))
                    raise ConfigurationError(f"{origin}: no setting {name!r}: {known}")
                if _READ[name] is seconds and origin != "argument":
                    raw = str(raw)  # in a file, too, a number has a unit
                try:
                    values[name] = _READ[name](raw)
                except (TypeError, ValueError) as error:
                    raise ConfigurationError(f"{name} ({shown}): {error}") from None
                origins[name] = shown
        return cls(**values, origins=origins)


# Limits that nobody sets, in seconds.
LOG_LOCK_WAIT: Final = 30.0  # for a lock of the log that another driver holds
LOCK_WAIT: Final = 10  # of a participant's request for a lock: then it is "not now"
PEER_TIMEOUT: Final = 30  # of silence, after which a peer of a database is gone
READ_WAIT: Final = 10.0  # for a piece of a request, of whatever is served here

_ORDER: Final = (
    ("request_timeout", "safety_interval"),
    ("safety_interval", "orphan_after"),
    ("safety_interval", "stuck_after"),
    ("stuck_after", "stuck_critical"),
    ("pause", "sweep"),
)
"""Pairs that must be in this order for the watcher to be right."""

_LEAST: Final = {
    "request_timeout": 0.05,
    "transaction_timeout": 0,
    "driver_path_bytes": 0,
    "rejects_at_most": 1,
    "inline_tries": 1,
    "backoff_base": 0.001,
    "backoff_cap": 0.001,
    "pause": 0.1,
    "keep_finished": 0,
}

_READ: Final[dict[str, Callable[[Any], Any]]] = {
    "log": _text,
    "participants": _participants,
    "token": _text,
    "tokens_file": _text,
    "on_pending": _pending,
    "rejects": check_name,
    "rejects_at_most": _whole,
    "driver_path_bytes": _whole,
    "inline_tries": _whole,
    "links": _links,
    "trace_apis": _trace_apis,
    "environment": _label,
    "inbox": _reference,
    **{f.name: seconds for f in dataclasses.fields(Settings) if f.type == "float"},
}


def _environment(env: Mapping[str, str]) -> dict[str, str]:
    # TPC_TOKEN is the secret itself; `token` is the reference to it.
    variables = {name: f"TPC_{name.upper()}" for name in _READ if name != "token"}
    values = {name: env[key] for name, key in variables.items() if key in env}
    if "log" in values and not values["log"].startswith("env:"):
        values["log"] = "env:TPC_LOG"  # it may hold a password: pass on the reference
    return values


def _file(chosen: str | Path | None) -> tuple[str, dict[str, Any]]:
    if chosen is not None:
        return str(chosen), _read_toml(Path(chosen))
    if (path := Path("tpc.toml")).is_file():
        return str(path), _read_toml(path)
    if (path := Path("pyproject.toml")).is_file():
        table = _read_toml(path).get("tool", {}).get("tracing_2pc", {})
        return "pyproject.toml [tool.tracing_2pc]", table
    return "no file", {}


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path}: not TOML: {error}") from None


def is_reference(text: str) -> bool:
    """Return whether it is a reference to a secret, and is none itself."""
    return text.startswith(("env:", "file:"))


def holds_secret(name: str, value: str) -> bool:
    """Return whether another program's setting is a secret, or a URL with a password.

    By its name, or by a login in its value.
    """
    word = re.sub(r"[^A-Z0-9]", "_", name.upper())
    return bool(_SAYS_SECRET.search(word) or _IN_URL.search(unquote(value)))


def raise_if_literal(properties: Mapping[str, str], instead: str) -> None:
    """Refuse a secret among a sink's properties that is no reference to it.

    `instead` is what a person may also do, in the words of the message.

    Raises:
        ConfigurationError: it would be pickled into Spark's files.
    """
    for name, value in properties.items():
        if holds_secret(name, value) and not is_reference(value):
            raise ConfigurationError(
                f"properties: {name}: give a reference, env:NAME or file:PATH, or "
                f"{instead}: what is in a sink is pickled into Spark's files"
            )


def read_secret(reference: str, purpose: str) -> str:
    """Read the secret that a reference points to, in the process that needs it.

    Only `env:NAME` and `file:PATH` are taken: closures and options are pickled by
    Spark, and a literal with them. The message names its `purpose`.

    Raises:
        ConfigurationError: a literal, or nothing there.
    """
    kind, _, place = reference.partition(":")
    if kind == "env" and place:
        if not (value := os.environ.get(place, "").strip()):
            raise ConfigurationError(
                f"{purpose}: the variable {place} is empty; set it"
            )
        remember_secret(value)
        return value
    if kind == "file" and place:
        try:
            value = Path(place).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigurationError(f"{purpose}: {place}: {error.strerror}") from None
        if not value:
            raise ConfigurationError(f"{purpose}: {place} is empty")
        remember_secret(value)
        return value
    raise ConfigurationError(
        f"{purpose}: give a reference, env:NAME or file:PATH, not the secret itself"
    )


_SAYS_SECRET: Final = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|API_?KEY|PRIVATE_?KEY|ACCOUNT_?KEY|HEADERS$"
    r"|CREDENTIAL|AUTHORIZATION|_AUTH$"
)
_LOGIN: Final = re.compile(r"://[^/\s@]*@")
_IN_URL: Final = re.compile(
    r"://[^/\s@:,]*:([^\s@/,]+)@|[?&](?:ssl)?password=(?!env:|file:)([^&\s]+)",
    re.IGNORECASE,
)
_SHORTEST: Final = 6
"""Characters of a secret: fewer are in any text."""

_SURE: Final = 16
"""Characters of a word that is no word of a language."""

_remembered: Final[dict[str, None]] = {}  # the latest last; those of this process
_lent: Final[dict[str, None]] = {}  # the same, of those that are good for minutes
_MOST_REMEMBERED: Final = 256
_MOST_LENT: Final = 16


def remember_secret(secret: str, *, is_lent: bool = False) -> None:
    """Have `without_secrets` cut it from now on, in this process.

    One that `is_lent` is good for minutes, and makes no other secret forgotten.
    """
    known, most = (_lent, _MOST_LENT) if is_lent else (_remembered, _MOST_REMEMBERED)
    known.pop(secret, None)
    known[secret] = None
    while len(known) > most:
        known.pop(next(iter(known)), None)


def without_secrets(text: str, also: Iterable[str] = ()) -> str:
    """Return another program's text, with every secret that we know cut out.

    Such texts go where others read them: a record, a log, a terminal. Known are the
    secrets that this process has read, and those of its environment: variables with the
    name of a secret, and passwords in URLs. The login (`name:password@`) of every URL
    is cut, whether we know it or not. Cut a text before you shorten it, or half of a
    secret stays.
    """
    if not text:
        return text
    secrets = {*also, *(s for s in _known_secrets() if len(s) >= _SHORTEST)}
    for secret in sorted((s for s in secrets if s and s in text), key=len)[::-1]:
        if len(secret) < _SURE and secret.isalnum():  # it may be a part of a word
            text = re.sub(rf"(?<!\w){secret}(?!\w)", "***", text)
        else:
            text = text.replace(secret, "***")
    return _LOGIN.sub("://", text)


def _known_secrets() -> Iterator[str]:
    """Yield the secrets of this process, in every spelling."""
    for name, value in os.environ.items():
        if _SAYS_SECRET.search(name.upper()) and not _is_place(name, value):
            yield from _spellings(value)
        elif "://" in value or "password=" in value.lower():
            yield from _spellings(value, is_secret=False)
    for value in (*_remembered, *_lent):
        yield from _spellings(value)


@functools.lru_cache(2048)
def _spellings(value: str, *, is_secret: bool = True) -> frozenset[str]:
    """Return a secret, its lines and long words, and passwords of URLs in it.

    Each also as it is quoted in a URL.
    """
    secrets = {value} if is_secret and "://" not in value else set[str]()
    for groups in _IN_URL.findall(value):
        secrets |= {word for part in groups for word in (part, unquote(part))}
    for secret in tuple(secrets):
        secrets |= {line.strip() for line in secret.splitlines()}
        secrets |= {w for w in re.split(r"[\s,=:]+", secret) if len(w) >= _SURE}
    return frozenset(secrets | {quote(secret, safe="") for secret in secrets})


def _is_place(name: str, value: str) -> bool:
    """Whether a variable has only the place of a secret, or a number of tokens."""
    is_path = value.startswith("/") and Path(value).exists()
    is_count = name.upper().endswith("TOKENS") and value.isdecimal()
    is_named = name.endswith(("_FILE", "_PATH", "_DIR"))
    return is_reference(value) or is_path or is_count or is_named
