"""The relay at a real broker: `make test-brokers`."""
