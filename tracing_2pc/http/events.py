"""A gateway's routes: events arrive by HTTP, and 202 means that they are on disk."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from flask import Blueprint, Request, Response, g, jsonify, request

from tracing_2pc.core import content
from tracing_2pc.core.access import Caller
from tracing_2pc.core.errors import ConfigurationError, MalformedError
from tracing_2pc.core.model import Carrier
from tracing_2pc.core.settings import check_name
from tracing_2pc.http.forms import check_coding
from tracing_2pc.http.views import Views, gate_of, open_or_warn, the
from tracing_2pc.inbox.event import NewEvent, Stored, digest_of, exact
from tracing_2pc.inbox.inbox import AlsoDo, BusyError, Inbox
from tracing_2pc.participant.json_lines import strict_decoder, strict_json, why_no_json
from tracing_2pc.participant.metrics import Measured
from tracing_2pc.tracing import instruments
from tracing_2pc.tracing.counted import Counted
from tracing_2pc.tracing.spans import set_status
from tracing_2pc.wire.error_responses import Problem

ACCEPTED: Final = 202

JSON: Final = "application/json"
_MEMBERS: Final = {"id", "payload"}
_BY_HEADER: Final = "Idempotency-Key"
_ANYBODY: Final = "local"
"""The producer where no tokens are asked for."""

_REFUSED: Final = dict.fromkeys((400, 411, 413, 415), "malformed")
_ANSWERS: Final = {ACCEPTED: "known", 409: "conflict", **_REFUSED}

_EXACT: Final = strict_decoder(exact)
_SPACE: Final = " \t\r\n"
_BLANK: Final = re.compile(f"[{_SPACE}]*")
_LINE: Final = re.compile(rb"\S[^\n]*")
"""What a line has, from its first sign on."""

_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\["\\])*)"')
_ESCAPED: Final = re.compile(r"\\(.)")
_USUAL: Final = re.compile(
    r'{"id"s:s"([^"\\\x00-\x1f]*)"s,s"payload"s:s'.replace("s", r"[ \t\r\n]*")
)
"""How an event begins that is written as nearly all are: it is read in one go."""


_counted: Final = Counted()
"""Events by their answers."""

instruments.observe(
    "tpc.inbox.events",
    lambda: [(n, {"answer": a}) for a, n in _counted.read().items() if n],
)


def events_blueprint(
    inbox: Inbox,
    *,
    tokens: str | os.PathLike[str] | None = None,
    insecure: bool = False,
    also: AlsoDo | None = None,
    schema: Mapping[str, Any] | None = None,
    max_body_bytes: int = 8 << 20,
    max_events: int = 5_000,
    trust_inbound: bool = True,
    name: str = "gateway",
) -> Blueprint:
    """Return the routes that let producers send events into an inbox.

    `POST /events` takes `{"id": …, "payload": …}`, a list of them, or one a line
    (`application/x-ndjson`). 202 means that all of them are on disk; after any other
    answer, or none, the producer sends the same again: an id is stored once. A request
    is taken whole or not at all, and never fails another's.

    Args:
        inbox: where they are kept.
        tokens: path of the tokens file, for lines `producer TOKEN NAME`; by default
            the setting `tokens_file`, which `TPC_TOKENS_FILE` sets.
        insecure: answer every process of this machine, and no other, without tokens;
            no proxy, no page in a browser.
        also: own work in the transaction that stores a request's events; see
            `Inbox.store`.
        schema: JSON Schema of payloads; a request with one that does not fit is
            refused before it waits for a flush. Needs `tracing-2pc[event-schemas]`.
        max_body_bytes: larger bodies are refused before they are read.
        max_events: of one request.
        trust_inbound: go on with the trace that a request brings.
        name: of the blueprint and, in traces, of the gateway.

    Raises:
        ConfigurationError: no tokens, a name that is none, or a schema that is wrong.
    """
    try:
        check_name(name, "gateway")
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    gate, measured = gate_of(tokens, insecure=insecure), Measured(inbox.gauges)
    form = _Form(max_body_bytes, max_events, _check_of(schema))
    views = _Events(gate, name, trust_inbound, measured, inbox, also, form)
    open_or_warn(inbox.open, "inbox")
    return views.blueprint()


_Check = Callable[[Any], None] | None


def _check_of(schema: Mapping[str, Any] | None) -> _Check:
    if schema is None:
        return None
    from tracing_2pc.http.payloads import payload_check  # an extra

    return payload_check(schema)


@dataclasses.dataclass(frozen=True)
class _Form:
    """The accepted form of a request."""

    max_body_bytes: int
    max_events: int
    check: _Check


@dataclasses.dataclass(frozen=True)
class _Events(Views):
    inbox: Inbox
    also: AlsoDo | None
    form: _Form

    def blueprint(self) -> Blueprint:
        made = self.made()
        post = partial(made.post, provide_automatic_options=False)
        get = partial(made.get, provide_automatic_options=False)
        post("/events")(self.events)
        get("/health")(self.health)
        return made

    def events(self) -> Response:
        with self.serving("events", "post events") as (caller, step):
            here, carrier = the(g), self.carrier()
            here.tpc_body.producer = _producer(caller)
            is_one, new = _read(the(request), self.form, carrier)
            here.tpc_events = len(new)
            try:
                stored = self.inbox.store(_producer(caller), new, self.also)
            except BusyError as error:
                raise Problem(429, str(error), headers={"Retry-After": "1"}) from None
            here.tpc_new = sum(event.is_new for event in stored)
            set_status(step, ACCEPTED, error=False)
            return _answer(stored, is_one=is_one)

    def record(self, response: Response) -> Response:
        here = the(g)
        if the(request).method == "POST" and here.get("tpc_admitted"):
            sent, new = here.get("tpc_events", 1), here.get("tpc_new", 0)
            answer = _ANSWERS.get(response.status_code, "later")
            _counted.add("stored", new)
            _counted.add(answer, sent - new)
        return super().record(response)

    def health(self) -> Response:
        self.ready()
        return jsonify(status="UP")

    def ready(self) -> Response:
        self.inbox.end()
        return jsonify(status="ready")


def _producer(caller: Caller) -> str:
    return caller.application or _ANYBODY


def _answer(stored: list[Stored], *, is_one: bool) -> Response:
    """Answer with each event's position, and whether it was there before."""
    events = [{"id": s.id, "position": s.position, "new": s.is_new} for s in stored]
    text = json.dumps(events[0] if is_one else {"events": events})
    return Response(text, ACCEPTED, mimetype=JSON)


def _read(
    request: Request, form: _Form, carrier: Carrier
) -> tuple[bool, list[NewEvent]]:
    """Return whether a request is a single event, and its events."""
    check_coding(request)
    length, limit, most = request.content_length, form.max_body_bytes, form.max_events
    if length is None:
        raise Problem(411, "send Content-Length")
    if length > limit:
        raise Problem(413, f"the body has {length} bytes, {limit} are taken: send less")
    text = request.stream.read(length)
    if len(text) < length:
        raise Problem(400, "the body ended before its Content-Length")
    is_one, parts = False, _lines(text)
    if request.mimetype != content.NDJSON:
        if request.mimetype != JSON:
            detail = f"Content-Type: send {JSON} or {content.NDJSON}"
            raise Problem(415, detail)
        is_one, parts = _document(text)
    key = _key_of(request) if is_one else None
    events: list[NewEvent] = []
    for where, part in parts:
        if len(events) == most:
            raise Problem(413, f"more than {most} events: send fewer")
        events.append(_event(where, part, key, carrier, form.check))
    if not events:
        raise Problem(400, "there is no event in the body")
    return is_one, events


def _key_of(request: Request) -> str | None:
    """Return the header that is an id; in quotes it is a text of RFC 9651."""
    key = request.headers.get(_BY_HEADER) or None
    if key is None or not key.startswith('"'):
        return key
    quoted = _QUOTED.fullmatch(key)
    if quoted is None:
        raise Problem(400, f"{_BY_HEADER}: expected a text in quotes, or without any")
    return _ESCAPED.sub(r"\1", quoted[1])


def _lines(text: bytes) -> Iterator[tuple[str, bytes]]:
    number, end = 1, 0
    for line in _LINE.finditer(text):
        number += text.count(b"\n", end, line.start())
        end = line.end()
        yield f"line {number}: ", line[0]


def _document(text: bytes) -> tuple[bool, Iterator[tuple[str, bytes]]]:
    """Return whether it is one event, and the text of each event of a list."""
    if not text.lstrip().startswith(b"["):
        return True, iter([("", text)])
    return False, _items(text)


def _event(
    where: str, text: bytes, key: str | None, carrier: Carrier, check: _Check
) -> NewEvent:
    try:
        item = _members(text.decode())
    except (ValueError, IndexError, RecursionError):
        _check_json(where, text)
        raise Problem(400, f"{where}expected an object with id and payload") from None
    if unknown := sorted(item.keys() - _MEMBERS):
        detail = f"{where}{unknown[0][:40]!r} is no member of an event: id, payload"
        raise Problem(400, detail)
    if "payload" not in item:
        raise Problem(400, f"{where}payload is missing")
    name, _ = item.get("id", (key, ""))
    if key not in (None, name):
        raise Problem(400, f"{where}id and {_BY_HEADER} differ: send one of them")
    if not isinstance(name, str):
        raise Problem(400, f"{where}id: expected a text, in the body or {_BY_HEADER}")
    content, body = item["payload"]
    try:
        if check is not None:
            check(body)
        return NewEvent(name, body, carrier, digest_of(content))
    except MalformedError as error:
        raise Problem(400, f"{where}{error}") from None


def _check_json(where: str, text: bytes) -> None:
    try:
        strict_json(text, _EXACT)
    except ValueError as error:
        raise Problem(400, f"{where}{why_no_json(error)}") from None


def _members(text: str) -> Mapping[str, tuple[Any, str]]:
    """Read an object strictly: each member's content, and how it is written."""
    if usual := _USUAL.match(text):
        first = usual.end()
        content, position = _EXACT.raw_decode(text, first)
        if text[position:].strip(_SPACE) == "}":
            return {"id": (usual[1], ""), "payload": (content, text[first:position])}
    members: dict[str, tuple[Any, str]] = {}
    position = _skip(text, _past(text, 0, "{"))
    more = text[position] != "}"
    while more:
        name, position = _EXACT.raw_decode(text, position)
        if not isinstance(name, str) or name in members:
            raise ValueError
        first = _skip(text, _past(text, position, ":"))
        content, position = _EXACT.raw_decode(text, first)
        members[name] = content, text[first:position]
        position = _skip(text, position)
        if more := text[position] == ",":
            position = _skip(text, position + 1)
    if text[_past(text, position, "}") :].strip(_SPACE):
        raise ValueError
    return members


def _items(body: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield a list's items as they are written, each when it is asked for."""
    number, problem = 0, "it is not JSON"
    try:
        text = body.decode()
        position = _skip(text, _past(text, 0, "["))
        more = text[position] != "]"
        while more:
            first, number = position, number + 1
            _, position = _EXACT.raw_decode(text, first)
            yield f"event {number}: ", text[first:position].encode()
            position = _skip(text, position)
            if more := text[position] == ",":
                position = _skip(text, position + 1)
        if not text[_past(text, position, "]") :].strip(_SPACE):
            return
    except IndexError:
        pass  # the text ends too early
    except RecursionError:
        problem = "it is nested too deeply"
    except ValueError as error:
        problem = why_no_json(error)
    raise Problem(400, f"event {number}: {problem}" if number else problem)


def _past(text: str, position: int, sign: str) -> int:
    position = _skip(text, position)
    if text[position] != sign:
        raise ValueError("it is not JSON")
    return position + 1


def _skip(text: str, position: int) -> int:
    blank = _BLANK.match(text, position)
    return blank.end() if blank else position
