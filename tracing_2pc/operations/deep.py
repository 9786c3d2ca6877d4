"""`tracing-2pc check --deep`: checks that read all records, and take their time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tracing_2pc import conformance
from tracing_2pc.core.errors import TwoPhaseError
from tracing_2pc.core.settings import Settings
from tracing_2pc.inspection.diagnosis import Finding
from tracing_2pc.inspection.findings import fault
from tracing_2pc.inspection.participants import Source, SourceKind, participant_source

_LOG: Final = Source(SourceKind.LOG)
_CURE: Final = (
    "change nothing, and keep copies of log and journals. A database that was put back "
    "or edited explains most of these; if none was, please report it"
)

_RESTORE: Final = (
    "stop what writes to it, keep a copy of the file, and restore it; the disk may be "
    "failing"
)

Journals = Sequence[tuple[str, str]]
"""Participants, and the URL of the database with the journal of each."""


def look_deeper(
    settings: Settings, journals: Journals, traces: Sequence[str] = ()
) -> Iterator[Finding]:
    """Yield the faults of all that is stored, by each check that there is.

    `traces` are files with spans, as `TPC_TRACE_FILE` names them.
    """
    if not settings.log:
        return  # said already
    stores = [(_LOG, settings.log), *((_source(name), url) for name, url in journals)]
    try:
        for about, url in stores:
            for line in conformance.storage_faults_at(url, str(about)):
                yield fault(about, line, _RESTORE)
        lines = (
            line for file in traces for line in Path(file).read_text().splitlines()
        )
        spans = [json.loads(line) for line in lines]
        contradictions = conformance.check_run(settings.log, journals, spans)
    except (TwoPhaseError, OSError, ValueError) as error:
        yield fault(
            _LOG,
            f"not held against the protocol: {error}",
            "mend that, and check again",
        )
        return
    for contradiction in contradictions:
        yield fault(_source(contradiction.participant), str(contradiction), _CURE)


def _source(participant: str) -> Source:
    return participant_source(participant) if participant else _LOG
