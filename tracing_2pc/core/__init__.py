"""The vocabulary: what everything else speaks of. The standard library only."""
