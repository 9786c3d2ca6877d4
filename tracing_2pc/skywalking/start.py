"""Turning it on: by the environment, or by one call."""

from __future__ import annotations

import ipaddress
import logging
import os
import ssl
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from opentelemetry import trace
from opentelemetry.sdk.resources import (
    SERVICE_INSTANCE_ID,
    SERVICE_NAME,
    OTELResourceDetector,
)
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from . import in_use
from .processor import SkyWalkingProcessor
from .sender import Collector

ENDPOINT: Final = "TPC_SKYWALKING_ENDPOINT"
TOKEN: Final = "TPC_SKYWALKING_TOKEN"  # noqa: S105 - the name of a variable
CERTIFICATES: Final = "TPC_SKYWALKING_CERTIFICATE"
DEFAULT: Final = "http://127.0.0.1:12800"
logger = logging.getLogger(__name__)


def start(
    endpoint: str | None = None,
    *,
    token: str | None = None,
    certificates: str | None = None,
    provider: TracerProvider | None = None,
) -> SkyWalkingProcessor:
    """Send the spans of this process to SkyWalking too, from now on.

    Once per process, after a fork if there is one. `sw8` is written and read if
    `OTEL_PROPAGATORS` names `skywalking`.

    Args:
        endpoint: base URL of the collector's HTTP port; by default of the variable
            `TPC_SKYWALKING_ENDPOINT`, or `http://127.0.0.1:12800`.
        token: by default of the variable `TPC_SKYWALKING_TOKEN`. If it leaves this
            machine without https, a warning is logged. No object shows it.
        certificates: file of those to trust, for https; by default of the variable
            `TPC_SKYWALKING_CERTIFICATE`, or the system's.
        provider: by default the process's own.

    Raises:
        ValueError: there is no provider of the OpenTelemetry SDK; or endpoint,
            token or certificates cannot be used, which is found without connecting.
    """
    ours = provider or trace.get_tracer_provider()
    if not isinstance(ours, TracerProvider):
        raise ValueError(
            "SkyWalking needs a tracer provider of the OpenTelemetry SDK: set one, or "
            "set OTEL_TRACES_EXPORTER=skywalking and let that which sets it up make one"
        )
    # Of the environment only: what the SDK makes up is the same after a fork.
    named = OTELResourceDetector().detect().attributes.get(SERVICE_INSTANCE_ID)
    url = _checked(endpoint or os.environ.get(ENDPOINT) or DEFAULT)
    processor = SkyWalkingProcessor(
        Collector(
            url,
            str(ours.resource.attributes[SERVICE_NAME])[:50],
            instance=str(named) if named else None,
            token=_secret(token, url),
            ca=_trusted(certificates or os.environ.get(CERTIFICATES), url),
        )
    )
    ours.add_span_processor(processor)
    in_use.use(processor)
    return processor


def _checked(endpoint: str) -> str:
    subject = f"endpoint of SkyWalking ({ENDPOINT})"
    try:
        url = urlsplit(endpoint)
        _ = url.port  # raises, if it is none
    except ValueError:
        raise ValueError(f"{subject}: its host or its port is none") from None
    if url.username or url.password:
        raise ValueError(f"{subject}: a URL must not hold a password")
    is_text = endpoint.isascii() and endpoint.isprintable() and " " not in endpoint
    is_http = is_text and url.scheme in {"http", "https"} and url.hostname
    if not is_http or url.query or url.fragment:
        raise ValueError(f"{subject}: expected http://host:port or https://host:port")
    return endpoint.rstrip("/")


def _secret(given: str | None, url: str) -> str | None:
    token = (given or os.environ.get(TOKEN, "")).strip()
    if not token.isascii() or not token.isprintable():
        raise ValueError(f"token of SkyWalking ({TOKEN}): it must be one line of ASCII")
    if token and urlsplit(url).scheme != "https" and not _is_local(url):
        logger.warning("the token of SkyWalking can be read on its way: use https")
    return token or None


def _trusted(certificates: str | None, url: str) -> str | None:
    if not certificates:
        return None
    subject = f"certificates for SkyWalking ({CERTIFICATES}): {certificates}"
    if urlsplit(url).scheme != "https":
        raise ValueError(f"{subject}: {url} does not use any; make it https")
    try:
        ssl.create_default_context(cafile=certificates)
    except OSError as error:
        raise ValueError(f"{subject}: {error.strerror}") from None
    return certificates


def _is_local(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class SkyWalkingExporter(SpanExporter):
    """The exporter of `OTEL_TRACES_EXPORTER=skywalking`. It exports nothing itself.

    A segment must be known when its first span starts, and an exporter gets a span when
    it has ended. So this adds our processor to the provider that is being set up.
    """

    def __init__(self) -> None:
        start()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Leave it to the processor."""
        return SpanExportResult.SUCCESS
