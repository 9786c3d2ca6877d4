"""The messages of `participant.proto`, and the contract's answers as messages and back.

Between the two halves an answer is the same as over HTTP: a status, and a JSON object.
It keeps all that a client judges: transaction, state, vote, rows, digest, reason.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.unknown_fields import UnknownFieldSet

from tracing_2pc.core.states import Refusal, Vote
from tracing_2pc.grpc.schema import FILE
from tracing_2pc.wire.error_responses import OK, STATUSES, refusal_of

SERVICE: Final = "tracing_2pc.v1.TransactionParticipantService"

POOL: Final = descriptor_pool.DescriptorPool()
"""Of its own: a program may have made messages of the same file by itself."""

POOL.Add(descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(FILE)))
DESCRIPTOR: Final = POOL.FindFileByName("tracing_2pc/grpc/participant.proto")


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name[name])


Branch: Final = _message("Branch")
PrepareRequest: Final = _message("PrepareRequest")
RejectedRow: Final = _message("RejectedRow")
PrepareResponse: Final = _message("PrepareResponse")
CommitRequest: Final = _message("CommitRequest")
RollbackRequest: Final = _message("RollbackRequest")
Outcome: Final = _message("Outcome")
AskRequest: Final = _message("AskRequest")
AskResponse: Final = _message("AskResponse")

METHODS: Final[Mapping[str, tuple[Any, Any]]] = {
    method.name: (_message(method.input_type.name), _message(method.output_type.name))
    for method in DESCRIPTOR.services_by_name[SERVICE.rpartition(".")[2]].methods
}
"""What each method takes and returns."""


def path_of(method: str) -> str:
    """Return a method as a call names it."""
    return f"/{SERVICE}/{method}"


class _Words:
    """The contract's words of one enum of the file, and their numbers."""

    def __init__(self, enum: str) -> None:
        prefix = f"{enum.upper()}_"
        values = DESCRIPTOR.enum_types_by_name[enum].values
        self._words = {
            value.number: value.name.removeprefix(prefix).lower() for value in values
        }
        self._numbers: dict[str, int] = {
            word: number for number, word in self._words.items()
        }

    def word(self, number: int) -> str | None:
        """Return the word; None if it is unspecified, or of a newer release."""
        return self._words.get(number) if number else None

    def number(self, word: object) -> int:
        """Return the number; that of "unspecified" for no word of the enum."""
        return self._numbers.get(str(word).replace(" ", "_"), 0)


_VOTES: Final = _Words("Vote")
_STATES: Final = _Words("State")
_REFUSALS: Final = _Words("Refusal")

# --- requests, where a server receives them -------------------------------------------


def order_of(request: Any) -> dict[str, Any]:
    """Return a commit or rollback as the fields of the HTTP contract's.

    A field of a newer release is kept by its number: an older participant refuses it,
    except in a commit. A rollback that is understood in part would abort too much.
    """
    fields = {field.name: value for field, value in request.ListFields()}
    fields["transaction_id"] = request.transaction_id
    if isinstance(request, CommitRequest):
        fields["branches"] = [
            {"branch": b.branch, "rows": b.rows, "digest": b.digest}
            for b in request.branches
        ]
        if "requires" in fields:
            fields["requires"] = list(request.requires)
    for unknown in UnknownFieldSet(request):
        fields[f"field {unknown.field_number}"] = None
    return fields


# --- answers, from a status and a JSON object -----------------------------------------


def response_of(status: int, item: Mapping[str, Any], participant: str) -> Any:
    """Return the answer to a prepare."""
    return PrepareResponse(
        **_common(status, item, participant),
        vote=_VOTES.number(item.get("vote")),
        rows=item.get("rows"),
        digest=item.get("digest"),
        rejected_rows=[RejectedRow(**row) for row in item.get("rejected_rows", ())],
    )


def outcome_of(status: int, item: Mapping[str, Any], participant: str) -> Any:
    """Return the answer to a commit or rollback."""
    return Outcome(**_common(status, item, participant))


def _common(status: int, item: Mapping[str, Any], participant: str) -> dict[str, Any]:
    refusal = None if status == OK else refusal_of(status) or Refusal.MALFORMED
    detail = str(item.get("detail") or "")
    return {
        "transaction_id": item.get("transaction_id"),
        "participant_name": participant,
        "message": detail.encode(errors="replace").decode(),
        "state": _STATES.number(item.get("state")),
        "refusal": _REFUSALS.number(refusal),
        "resolved_by_hand": item.get("resolved_by_hand") is True,
        "committed": item.get("committed"),
    }


# --- and back, where a client reads them ----------------------------------------------


def read_response(response: Any, participant: str) -> tuple[int, str]:
    """Return the answer to a prepare, as over HTTP.

    A vote to commit implies that the branch is prepared.
    """
    vote = _VOTES.word(response.vote)
    fields = {"vote": vote, "rows": response.rows, "digest": response.digest}
    if vote in (Vote.COMMIT, Vote.READ_ONLY):
        fields["state"] = _STATES.word(response.state) or "prepared"
    if response.rejected_rows:
        fields["rejected_rows"] = [
            {
                "row": r.row,
                "column": r.column,
                "reason": r.reason,
                "is_peers": r.is_peers,
            }
            for r in response.rejected_rows
        ]
    status, item = _read(response, participant)
    if status == OK and vote == Vote.ABORT:
        status = STATUSES[Refusal.CONFLICT]
    return status, _json(item | fields)


def read_outcome(outcome: Any, participant: str) -> tuple[int, str]:
    """Return the answer to a commit or rollback, as over HTTP."""
    status, item = _read(outcome, participant)
    return status, _json(item)


def _read(answer: Any, participant: str) -> tuple[int, dict[str, Any]]:
    item = {
        "transaction_id": answer.transaction_id,
        "state": _STATES.word(answer.state),
        "detail": answer.message,
        "resolved_by_hand": answer.resolved_by_hand or None,
        "committed": answer.committed,
    }
    name = answer.participant_name
    if name and name != participant:
        item["detail"] = f"this is participant {name!r}"
        return STATUSES[Refusal.MISDIRECTED], item
    if not answer.refusal:
        return OK, item
    word = _REFUSALS.word(answer.refusal)
    # One of a newer release is no answer that counts, as a status that is not known.
    refusal = Refusal(word.replace("_", " ")) if word else Refusal.NOT_NOW
    return STATUSES[refusal], item


def _json(item: Mapping[str, Any]) -> str:
    given = {name: value for name, value in item.items() if value not in (None, "")}
    return json.dumps(given)
