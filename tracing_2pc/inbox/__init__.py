"""Events that are kept until a job has applied them: the way in, beside `outbox`."""

from __future__ import annotations

from tracing_2pc.inbox.event import Event, NewEvent, Offset, Stored
from tracing_2pc.inbox.inbox import Inbox

__all__ = ["Event", "Inbox", "NewEvent", "Offset", "Stored"]
