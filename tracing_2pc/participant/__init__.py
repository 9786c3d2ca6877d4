"""What a service embeds to become a participant.

A blueprint gives a Flask application the routes of `openapi.yaml`; a resource does
the work. Whatever only one service needs does not belong here.
"""

from tracing_2pc.participant.blueprint import participant_blueprint
from tracing_2pc.participant.resources.outbox import Outbox
from tracing_2pc.participant.resources.tagged_rows import TaggedRows

__all__ = ["Outbox", "TaggedRows", "participant_blueprint"]
