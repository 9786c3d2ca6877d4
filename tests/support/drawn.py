"""Examples of Hypothesis that depend on their test alone."""

from __future__ import annotations

from hypothesis.internal.conjecture import providers


def leave_out_local_constants() -> None:
    """Draw the same, whatever is edited or imported elsewhere.

    Hypothesis mixes in constants of each module of ours that is loaded, derandomized or
    not, and has no setting against it.
    """
    providers._get_local_constants = providers.Constants
