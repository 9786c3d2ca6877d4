"""`tracing-2pc serve`: a participant of the settings, as a service."""

from __future__ import annotations

import argparse
import ssl
import sys
from pathlib import Path
from typing import Any, Final

from tracing_2pc.cli.arguments import DONE
from tracing_2pc.core.access import TokenGate
from tracing_2pc.core.addresses import name_of
from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.remote_participant import EMBEDDED, open_participant
from tracing_2pc.core.settings import Settings
from tracing_2pc.operations.wiring import participant_named
from tracing_2pc.wire.serving import listen_at, parse_address

HTTP_LISTEN: Final = "127.0.0.1:8081"
GRPC_LISTEN: Final = "127.0.0.1:50051"


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Serve it until SIGTERM."""
    from tracing_2pc.http import server  # noqa: F401 - before any fork, and once

    sys.path.insert(0, "")  # for `python:`, as gunicorn does it
    certificate, key = options.tls or (None, None)
    if options.tls:
        _check_certificate(*options.tls)
    if options.nats:
        from tracing_2pc.nats import serve_nats

        if options.listen or options.tls:
            raise ConfigurationError(
                "--nats URL says where it is served: leave --listen and --tls out"
            )
        serve_nats(_application(options.name, settings), options.nats)
    elif options.grpc:
        from tracing_2pc.grpc import serve_grpc

        application = _application(options.name, settings)
        listen = options.listen or GRPC_LISTEN
        serve_grpc(application, listen, certificate=certificate, key=key)
    else:
        from tracing_2pc.http.gunicorn_app import Gunicorn

        listen = options.listen or HTTP_LISTEN
        # Said here in one line: gunicorn tries a port for seconds.
        listen_at(*parse_address(listen)).close()
        _check(options.name, settings)

        def make() -> Any:  # at a reload by the settings as they are then
            return _application(options.name, Settings.load(options.config))

        Gunicorn(make, bind=listen, certfile=certificate, keyfile=key).run()
    return DONE


def _check_certificate(certificate: str, key: str) -> None:
    """Refuse files that do not fit: else each connection would meet that."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password="")
    except OSError as error:  # that of TLS is one, too
        raise ConfigurationError(
            f"--tls {certificate} {key}: {error.strerror}"
        ) from None


def _check(name: str, settings: Settings) -> str:
    """Return the address that is to be served; nothing is connected to.

    Raises:
        ConfigurationError: the settings have no such participant, or not the address
            that a service opens, or no tokens.
    """
    url = participant_named(name, settings.participants)
    if url.partition(":")[0].lower() not in EMBEDDED:
        raise ConfigurationError(
            f"participant {name!r}: {url} is the URL of a service: the settings here "
            "have the address that the service itself opens, as in "
            "postgresql://user@host/database?table=orders"
        )
    if settings.tokens_file is None:
        raise ConfigurationError(
            "a service needs tokens: run `tracing-2pc init` beside the job to make a "
            "tokens file, and name it in tokens_file (TPC_TOKENS_FILE)"
        )
    TokenGate.read(Path(settings.tokens_file))
    if not url.startswith("python:"):  # which a process imports after its fork
        open_participant(name, url, None, settings.request_timeout)
    return url


def _application(name: str, settings: Settings) -> Any:
    from tracing_2pc.embedded.addresses import read_address
    from tracing_2pc.http.server import participant_application

    url, tokens, own = _check(name, settings), settings.tokens_file, name_of(name)
    try:
        resource = read_address(url).open()
        application = participant_application(resource, tokens=tokens, name=own)
        resource.settle()
    except ConfigurationError as error:
        raise ConfigurationError(f"participant {name!r}: {error}") from None
    return application
