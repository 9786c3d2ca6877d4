"""A schema registry: `python -m support.schema_registry PORT LOGIN FILE`.

It asks for a login, keeps schemas of Avro and Protobuf in a file, and answers 409 where
a field of Avro has come without a default: who has the new schema could not read what
was written before.
"""

from __future__ import annotations

import base64
import http.server
import json
import sys
import urllib.parse
from pathlib import Path
from typing import Any


def serve(port: int, login: str, file: Path) -> None:
    wanted = "Basic " + base64.b64encode(login.encode()).decode()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.answer(200, {})

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.headers["Authorization"] != wanted:
                self.answer(401, {"error_code": 401, "message": "Unauthorized"})
                return
            subject = urllib.parse.unquote(self.path.split("/")[2])
            kept: dict[str, list[Any]] = json.loads(file.read_text())
            every, of = kept["schemas"], kept.setdefault(subject, [])
            schema = [asked["schema"], asked.get("schemaType", "AVRO")]
            if of and (field := new_field(schema, every[of[-1]])):
                detail = f"The field '{field}' in the new schema has no default value"
                message = (
                    "Schema being registered is incompatible with an earlier schema "
                    f'for subject "{subject}", details: [{detail} and is missing in '
                    "the old schema]"
                )
                self.answer(409, {"error_code": 409, "message": message})
                return
            if schema not in every:
                every.append(schema)
            number = every.index(schema)
            if number not in of:
                of.append(number)
            file.write_text(json.dumps(kept))
            self.answer(200, {"id": number + 1})

        def answer(self, status: int, body: Any) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    if not file.exists():
        file.write_text(json.dumps({"schemas": []}))
    http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


def new_field(new: list[str], old: list[str]) -> str:
    if new[1] != "AVRO":
        return ""
    before = {field["name"] for field in json.loads(old[0])["fields"]}
    fields = json.loads(new[0])["fields"]
    wrong = (
        f["name"] for f in fields if f["name"] not in before and "default" not in f
    )
    return next(wrong, "")


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
