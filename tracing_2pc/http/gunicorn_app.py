"""gunicorn in the process of a command of ours."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from flask import Flask
from gunicorn.app.base import Application
from gunicorn.errors import AppImportError, HaltServer

from tracing_2pc.core.errors import ConfigurationError


class Gunicorn(Application):  # type: ignore[misc]
    """gunicorn by the settings that we ship, and those of `GUNICORN_CMD_ARGS`.

    Args:
        make: makes the application: in each worker, after its fork.
        settings: settings of gunicorn that no other may change.
    """

    def __init__(self, make: Callable[[], Flask], **settings: Any) -> None:
        self._make = make
        self._settings = settings
        super().__init__()

    def load_config(self) -> None:
        """Read all settings, at the start and at a reload."""
        self.load_config_from_file("python:tracing_2pc.http.gunicorn_conf")
        arguments = self.cfg.parser().parse_args(self.cfg.get_cmd_args_from_env())
        for name, value in {**vars(arguments), **self._settings}.items():
            if name in self.cfg.settings and value is not None:
                self.cfg.set(name, value)
        self.chdir()

    def run(self) -> None:
        """Serve; where two workers cannot start, gunicorn falls over the second one."""
        try:
            super().run()
        except HaltServer as end:
            sys.exit(end.exit_status)

    def load(self) -> Flask:
        """Make the application; an error in it ends gunicorn, with one line."""
        try:
            return self._make()
        except ConfigurationError as error:
            raise AppImportError(str(error)) from None
