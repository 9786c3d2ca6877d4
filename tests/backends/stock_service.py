"""A service that knows nothing of us, run by SkyWalking's own agent.

    STOCK_PORT=… sw-python run python stock_service.py            a participant
    STOCK_PORT=… STOCK_TO=http://… sw-python run python …         hands requests on

As a participant it keeps the contract's answers in memory, which is enough for a trace.
"""

from __future__ import annotations

import json
import os

import requests
from flask import Flask, Response, request

KEPT = ("Tpc-", "Content-", "Authorization", "Accept")
app = Flask("stock")


@app.get("/health/ready")
def ready() -> str:
    return "ready"


@app.post("/prepare")
def prepare() -> Response:
    if to := os.environ.get("STOCK_TO"):
        return handed_on(to)
    return told(
        request.headers["Tpc-Transaction-Id"],
        "prepared",
        vote="commit",
        rows=int(request.headers["Tpc-Rows"]),
        digest=request.headers["Content-Digest"],
    )


@app.post("/commit")
def commit() -> Response:
    if to := os.environ.get("STOCK_TO"):
        return handed_on(to)
    return told(request.get_json()["transaction_id"], "committed")


@app.get("/transactions/<transaction>")
def show(transaction: str) -> Response:
    return handed_on(os.environ["STOCK_TO"])


def told(transaction: str, state: str, **more: object) -> Response:
    body = json.dumps({"transaction_id": transaction, "state": state, **more})
    return Response(body, content_type="application/json")


def handed_on(to: str) -> Response:
    headers = {k: v for k, v in request.headers if k.startswith(KEPT)}
    answer = requests.request(
        request.method, to + request.path, data=request.get_data(), headers=headers,
        timeout=None,
    )  # fmt: skip
    return Response(
        answer.content, answer.status_code, content_type=answer.headers["Content-Type"]
    )


if __name__ == "__main__":
    app.run("127.0.0.1", int(os.environ["STOCK_PORT"]))
