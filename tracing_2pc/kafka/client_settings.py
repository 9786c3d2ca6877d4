"""Settings of Kafka's clients: which are the relay's, which are secret, which fit."""

from __future__ import annotations

import contextlib
import importlib
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.settings import is_reference, read_secret, without_secrets

OWN_SETTINGS: Final = frozenset(
    {
        "bootstrap.servers",
        "transactional.id",
        "transaction.timeout.ms",
        "enable.idempotence",
        "acks",
        "request.required.acks",
        "partitioner",
        "batch.size",
        "message.max.bytes",
        "group.id",
        "isolation.level",
        "allow.auto.create.topics",
        "logger",
    }
)
"""What makes a publication whole, and each key's place: the relay's."""

SECRETS: Final = frozenset(
    {
        "sasl.password",
        "sasl.oauthbearer.client.secret",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.password",
    }
)

LOGIN: Final = "oauth_cb"
"""The function that returns a token, or `module:function`, for a cloud's login."""

_FILES: Final = ".location"
"""How settings end that name a file."""


def check_references(settings: Mapping[str, Any], secrets: frozenset[str]) -> None:
    """Raise `ConfigurationError` if a secret is given, and no reference to it.

    So it is with a function that no other process can have: it cannot be pickled.
    """
    for name, value in settings.items():
        if callable(value):
            try:
                pickle.dumps(value)
            except Exception:  # noqa: BLE001 - the object's own
                raise ConfigurationError(
                    f"settings: {name}: this function cannot be pickled: give one of a "
                    "module, or its name, module:function"
                ) from None
    for name in sorted(secrets & settings.keys()):
        if not is_reference(settings[name]):
            raise ConfigurationError(
                f"settings: {name}: give a reference, env:NAME or file:PATH"
            )


def with_secrets(
    settings: Mapping[str, Any], secrets: frozenset[str]
) -> dict[str, Any]:
    """Return settings with their references resolved, in this process.

    Raises:
        ConfigurationError: a secret is not there, or the function of `oauth_cb`.
    """
    read = {
        name: read_secret(value, name) if name in secrets else value
        for name, value in settings.items()
    }
    if isinstance(login := read.get(LOGIN), str):
        read[LOGIN] = _imported(login)
    return read


def _imported(reference: str) -> Any:
    module, _, function = reference.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except Exception as error:  # noqa: BLE001 - the module's own
        raise ConfigurationError(
            f"settings: {LOGIN}: {reference} cannot be imported "
            f"({type(error).__name__}): write module:function, and have the module "
            "where the relay runs"
        ) from None


@contextlib.contextmanager
def refused_in_one_line(
    settings: Mapping[str, Any], secrets: frozenset[str]
) -> Iterator[None]:
    """Make a client of settings in it: `ConfigurationError` has the reason if it fails.

    A file that is not there is named, and no secret is.
    """
    for name, value in settings.items():
        is_file = name.endswith(_FILES) and isinstance(value, str) and value != "probe"
        if is_file and not Path(value).exists():
            raise ConfigurationError(f"settings: {name}: {value}: no such file")
    try:
        yield
    except ConfigurationError:
        raise
    except Exception as error:  # noqa: BLE001 - clients raise what they like
        is_kafka = isinstance(error, KafkaException)
        message = (
            error.args[0].str() if is_kafka else str(error) or type(error).__name__
        )
        known = [str(settings[name]) for name in secrets & settings.keys()]
        message = without_secrets(message, known)
        raise ConfigurationError(f"settings: {' '.join(message.split())}") from None
