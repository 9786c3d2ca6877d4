"""`@traced_sink`: spans around a sink's phases."""
