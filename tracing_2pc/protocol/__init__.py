"""Two-phase commit itself: no I/O of its own, the standard library only."""
