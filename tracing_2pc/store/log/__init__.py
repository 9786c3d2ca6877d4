"""The decision log: the coordinator's durable memory, and all of its SQL."""
