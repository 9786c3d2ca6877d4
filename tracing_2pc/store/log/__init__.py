"""The decision log: the coordinator's durable memory."""
