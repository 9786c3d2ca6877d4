"""What a tracing backend has of a transaction, asked through its own API."""
