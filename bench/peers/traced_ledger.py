"""A ledger whose tracing the environment chooses: `gunicorn ...:create_app()`."""

from __future__ import annotations

from flask import Flask

from bench.peers import own_tracing
from participants import ledger


def create_app() -> Flask:
    """Make the application of `participants.ledger`."""
    own_tracing.obey()
    return ledger.create_app()
