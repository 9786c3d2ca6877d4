"""The actions of a person: one module for each, and all of them in one list.

A module declares the arguments, the effect and the cost, and carries it out. The
command line has a command of it and the console a form, without another line. Modules
load stores and transports only where they work: every command reads this list.
"""

from __future__ import annotations

from typing import Final

from tracing_2pc.operations.actions.action import Action
from tracing_2pc.operations.actions.adopt import ADOPT
from tracing_2pc.operations.actions.forget import FORGET
from tracing_2pc.operations.actions.inbox import KEEP, RETIRE
from tracing_2pc.operations.actions.outbox import AGAIN, AGAIN_ALL, DROP, SEND, SENT
from tracing_2pc.operations.actions.recover import RECOVER
from tracing_2pc.operations.actions.resolve import RESOLVE
from tracing_2pc.operations.actions.retire import RETIRE as RETIRE_APPLICATION

ACTIONS: Final[tuple[Action, ...]] = (
    *(RESOLVE, AGAIN, DROP, SEND, SENT, AGAIN_ALL),
    *(RECOVER, RETIRE_APPLICATION, RETIRE, KEEP, FORGET, ADOPT),
)
"""All of them, in the order of the help."""
