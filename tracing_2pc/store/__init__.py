"""The coordinator's durable memory."""
