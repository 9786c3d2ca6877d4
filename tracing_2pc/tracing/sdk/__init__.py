"""OpenTelemetry's SDK: started, flushed and stopped; and its exporters.

Knows nothing of the decorator or of a transaction. `lifecycle` is where to begin.
"""
