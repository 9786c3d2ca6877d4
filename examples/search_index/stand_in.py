"""A stand-in for a search index: it keeps to the documented rules of its bulk API.

    python stand_in.py PORT

It is not a search index: it is in memory, and cannot search. What it does as the real
one documents it, for `POST /<index>/_bulk` with `index` actions of version type
`external`:

- a body of another type than JSON is 406, one without a last newline or with an action
  that it does not know is 400, and then nothing is indexed;
- otherwise the answer is 200, with an item for each action in order, and `errors` true
  if one of them was not done;
- a version above the one that is there, or the first one, is taken: 201 or 200; one
  that is not is 409, `version_conflict_engine_exception`, and changes nothing;
- a document that does not fit the mapping (here: a price that is no number) is 400;
- with too much to do it answers 429 to all of a request, or to some of its items.

`POST /stand-in/busy?requests=N` makes it so busy for N requests, `GET /stand-in/bulks`
returns all bulk requests that came, `GET /<index>/_source` all documents by id.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from flask import Flask, Response, jsonify, request


def create_app() -> Flask:
    app = Flask("stand-in")
    indices: dict[str, dict[str, tuple[int, Any]]] = {}
    bulks: list[str] = []
    busy = [0]
    lock = threading.Lock()

    @app.post("/<index>/_bulk")
    def bulk(index: str) -> tuple[Response, int]:
        text = request.get_data(as_text=True)
        with lock:
            bulks.append(text)
            if request.mimetype not in {"application/x-ndjson", "application/json"}:
                return refusal(406, "media_type_header_exception")
            busy[0], is_busy = max(0, busy[0] - 1), busy[0]
            if is_busy % 2:
                return refusal(429, "es_rejected_execution_exception")
            try:
                actions = read(text)
            except (ValueError, KeyError, TypeError):
                return refusal(400, "illegal_argument_exception")
            documents = indices.setdefault(index, {})
            items = []
            for number, (about, document) in enumerate(actions):
                late = bool(is_busy) and number % 2
                items.append({"index": put(documents, about, document, late=late)})
        errors = any("error" in item["index"] for item in items)
        return jsonify(took=1, errors=errors, items=items), 200

    @app.get("/<index>/_source")
    def source(index: str) -> Response:
        with lock:
            return jsonify({i: d for i, (_, d) in indices.get(index, {}).items()})

    @app.get("/stand-in/bulks")
    def came() -> Response:
        with lock:
            return jsonify(bulks)

    @app.post("/stand-in/busy")
    def be_busy() -> Response:
        with lock:
            busy[0] = int(request.args["requests"])
        return jsonify(busy[0])

    return app


def read(text: str) -> list[tuple[dict[str, Any], Any]]:
    """Return actions and their documents, or raise."""
    if not text.endswith("\n"):
        raise ValueError("a bulk request ends with a newline")
    lines = [json.loads(line) for line in text.splitlines()]
    actions = [action["index"] for action in lines[::2]]
    if any(a["version_type"] != "external" or int(a["version"]) < 0 for a in actions):
        raise ValueError("a version")
    return list(zip(actions, lines[1::2], strict=True))


def put(
    documents: dict[str, tuple[int, Any]],
    about: dict[str, Any],
    document: Any,
    *,
    late: bool,
) -> dict[str, Any]:
    """Index one document, or do not; return its item of the answer."""
    id_, version = str(about["_id"]), int(about["version"])
    there = documents.get(id_)
    if late:
        return item(id_, 429, "es_rejected_execution_exception")
    if not isinstance(document.get("price", 0), int | float):
        return item(id_, 400, "document_parsing_exception")
    if there is not None and there[0] >= version:
        return item(id_, 409, "version_conflict_engine_exception")
    documents[id_] = (version, document)
    result = "created" if there is None else "updated"
    status = 201 if there is None else 200
    return {"_id": id_, "_version": version, "result": result, "status": status}


def item(id_: str, status: int, error: str) -> dict[str, Any]:
    return {"_id": id_, "status": status, "error": {"type": error}}


def refusal(status: int, error: str) -> tuple[Response, int]:
    return jsonify(error={"type": error}, status=status), status


if __name__ == "__main__":
    create_app().run("127.0.0.1", int(sys.argv[1]), threaded=True)
