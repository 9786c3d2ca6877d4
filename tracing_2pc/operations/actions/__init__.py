"""What a person can do: one module for each action, and all of them in one list.

A module says what is typed, what that does and costs, and does it. The command line
has a command of it and the console a form, without another line. Modules load stores
and transports only where they work: every command reads this list.
"""

from __future__ import annotations

from typing import Final

from tracing_2pc.operations.actions.action import Action
from tracing_2pc.operations.actions.adopt import ADOPT
from tracing_2pc.operations.actions.forget import FORGET
from tracing_2pc.operations.actions.inbox import KEEP, RETIRE
from tracing_2pc.operations.actions.outbox_again_all import AGAIN_ALL
from tracing_2pc.operations.actions.recover import RECOVER
from tracing_2pc.operations.actions.retire import RETIRE as RETIRE_APPLICATION

ACTIONS: Final[tuple[Action, ...]] = (
    *(RECOVER, RETIRE_APPLICATION),
    *(AGAIN_ALL, RETIRE, KEEP, FORGET, ADOPT),
)
"""All of them, in the order of the help."""
