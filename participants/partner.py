"""A stand-in for an outside company's API: it takes notifications, and it can fail.

It knows nothing of us. A notification is stored in SQLite before it is answered; a
repeated `Idempotency-Key` is answered 200 and stored once, but every request counts.
`POST /faults` makes it misbehave, until the process ends: run it with one worker.
"""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any, Final

from flask import Flask, Response, abort, current_app, request
from werkzeug.exceptions import HTTPException

Answer = tuple[dict[str, Any], int]

FAULTS: Final = {"error": 500, "refuse": 422, "drop": None}
MAX_DELAY: Final = 60.0
PAGE: Final = 1000

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS notification (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, body TEXT NOT NULL,
    received_at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS request (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL, received_at REAL NOT NULL);
CREATE INDEX IF NOT EXISTS request_key ON request (key);
"""


class Store:
    """Notifications and requests in a SQLite file. Durable when a method returns."""

    def __init__(self, path: str) -> None:
        self._path = path
        with closing(self._connect()) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(SCHEMA)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=30, isolation_level=None)
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    def count(self, key: str) -> None:
        """Record that a request has arrived, whatever becomes of it."""
        with closing(self._connect()) as connection:
            connection.execute(
                "INSERT INTO request (key, received_at) VALUES (?, ?)",
                (key, time.time()),
            )

    def add(self, key: str, body: str) -> tuple[bool, str]:
        """Store a notification once; say whether it is new, and what the key holds."""
        with closing(self._connect()) as connection:
            added = connection.execute(
                "INSERT INTO notification (key, body, received_at) VALUES (?, ?, ?) "
                "ON CONFLICT (key) DO NOTHING",
                (key, body, time.time()),
            )
            row = connection.execute(
                "SELECT body FROM notification WHERE key = ?", (key,)
            ).fetchone()
            return added.rowcount == 1, row[0]

    def page(self, after: int, limit: int) -> dict[str, Any]:
        """Return notifications in order of arrival, and how many requests came."""
        with closing(self._connect()) as connection:
            rows = connection.execute(
                "SELECT n.id, n.key, n.body, n.received_at, "
                "(SELECT count(*) FROM request r WHERE r.key = n.key) "
                "FROM notification n WHERE n.id > ? ORDER BY n.id LIMIT ?",
                (after, limit),
            ).fetchall()
            (requests,) = connection.execute("SELECT count(*) FROM request").fetchone()
        names = ("id", "key", "body", "received_at", "requests")
        notifications = [dict(zip(names, row, strict=True)) for row in rows]
        for item in notifications:
            item["body"] = json.loads(item["body"])
        following = notifications[-1]["id"] if len(notifications) == limit else None
        return {"notifications": notifications, "requests": requests, "next": following}


class Faults:
    """What goes wrong at present. In memory: a restart heals it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._plan: dict[str, Any] = {"fault": None, "delay": 0.0, "times": None}

    def plan(self, fault: str | None, delay: float, times: int | None) -> None:
        """Replace what goes wrong; `times` requests long, or until replaced."""
        with self._lock:
            self._plan = {"fault": fault, "delay": delay, "times": times}

    def show(self) -> dict[str, Any]:
        """Return the plan, with the times that are left."""
        with self._lock:
            return dict(self._plan)

    def take(self) -> tuple[str | None, float]:
        """Return what goes wrong with this request, and count it."""
        with self._lock:
            times = self._plan["times"]
            if times == 0:
                return None, 0.0
            if times is not None:
                self._plan["times"] = times - 1
            return self._plan["fault"], self._plan["delay"]


def create_app(database: str | None = None) -> Flask:
    """Make the application over one SQLite file, `PARTNER_DATABASE` by default."""
    app = Flask(__name__)
    app.config["MAX_CONTENT_LENGTH"] = 64 * 1024
    app.extensions["store"] = Store(database or os.environ["PARTNER_DATABASE"])
    app.extensions["faults"] = Faults()
    app.register_error_handler(HTTPException, _problem)
    app.add_url_rule("/notifications", view_func=notify, methods=["POST"])
    app.add_url_rule("/notifications", view_func=dump)
    app.add_url_rule("/faults", view_func=plan_faults, methods=["POST"])
    app.add_url_rule("/faults", view_func=show_faults)
    app.add_url_rule("/health/live", "live", lambda: {"status": "live"})
    app.add_url_rule("/health/ready", "ready", ready)
    return app


def notify() -> Answer:
    """Take one notification: 201 when it is new, 200 when the key was seen before."""
    key = request.headers.get("Idempotency-Key", "")
    if not (0 < len(key) <= 255 and key.isascii() and key.isprintable()):
        abort(400, "Idempotency-Key: 1 to 255 printable ASCII characters")
    body = json.dumps(_object(), sort_keys=True)
    _store().count(key)
    fault, delay = _faults().take()
    time.sleep(delay)
    if fault in {"error", "refuse"}:
        abort(FAULTS[fault], "a fault that was switched on")  # type: ignore[arg-type]
    new, stored_body = _store().add(key, body)
    if fault == "drop":
        _hang_up()
    if stored_body != body:
        abort(422, "Idempotency-Key: was used for another notification")
    return {"key": key, "new": new}, 201 if new else 200


def dump() -> dict[str, Any]:
    """Show what was received: `after` an id, at most `limit` of them."""
    limit = max(1, min(_number("limit", PAGE), PAGE))
    return _store().page(_number("after", 0), limit)


def plan_faults() -> dict[str, Any]:
    """Switch a fault on; an empty object switches all off."""
    plan = _object()
    if unknown := plan.keys() - {"fault", "delay", "times"}:
        abort(400, f"unknown: {', '.join(sorted(unknown))}")
    fault, delay = plan.get("fault"), plan.get("delay", 0)
    times = plan.get("times")
    if fault is not None and fault not in list(FAULTS):
        abort(400, f"fault: one of {', '.join(FAULTS)}")
    if type(delay) not in {int, float} or not 0 <= delay <= MAX_DELAY:
        abort(400, f"delay: seconds, 0 to {MAX_DELAY:g}")
    if times is not None and (type(times) is not int or times < 1):
        abort(400, "times: a whole number from 1")
    _faults().plan(fault, float(delay), times)
    return _faults().show()


def show_faults() -> dict[str, Any]:
    """Show what is switched on."""
    return _faults().show()


def ready() -> dict[str, str]:
    """Answer 200 when the database can be read."""
    _store().page(0, 1)
    return {"status": "ready"}


def _store() -> Store:
    store: Store = current_app.extensions["store"]
    return store


def _faults() -> Faults:
    faults: Faults = current_app.extensions["faults"]
    return faults


def _object() -> Mapping[str, Any]:
    try:
        item = json.loads(request.get_data(), parse_constant=_refuse)
    except (ValueError, RecursionError):
        abort(400, "the body is not JSON")
    if not isinstance(item, dict):
        abort(400, "the body is not a JSON object")
    return item


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _number(name: str, default: int) -> int:
    text = request.args.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        abort(400, f"{name}: a whole number")
    return int(text)


def _hang_up() -> None:
    # The server's own socket: no WSGI answer can say "no answer".
    connection = request.environ.get("gunicorn.socket") or request.environ.get(
        "werkzeug.socket"
    )
    if connection is None:
        abort(500, "this server cannot hang up")
    connection.shutdown(socket.SHUT_RDWR)


def _problem(error: HTTPException) -> Response:
    about = {"title": error.name, "status": error.code, "detail": error.description}
    return Response(
        json.dumps(about), error.code, content_type="application/problem+json"
    )


if __name__ == "__main__":
    from .serve import serve

    serve("partner", 8083, needs=("PARTNER_DATABASE",), config="gunicorn_partner")
