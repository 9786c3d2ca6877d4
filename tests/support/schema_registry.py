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

from support.served import StandIn


def serve(port: int, login: str, file: Path) -> None:
    wanted = "Basic " + base64.b64encode(login.encode()).decode()

    class Handler(StandIn):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:  # noqa: N802 - as http.server has it
            self.tell(200, {})

        def do_POST(self) -> None:  # noqa: N802 - as http.server has it
            asked = json.loads(self.body())
            if self.headers["Authorization"] != wanted:
                self.tell(401, {"error_code": 401, "message": "Unauthorized"})
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
                self.tell(409, {"error_code": 409, "message": message})
                return
            if schema not in every:
                every.append(schema)
            number = every.index(schema)
            if number not in of:
                of.append(number)
            file.write_text(json.dumps(kept))
            self.tell(200, {"id": number + 1})

        def tell(self, status: int, about: Any) -> None:
            kind = "application/vnd.schemaregistry.v1+json"
            self.answer(status, json.dumps(about).encode(), kind)

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
