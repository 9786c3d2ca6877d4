"""OpenTelemetry's SDK: started, flushed and stopped; what is exported, and how.

Knows nothing of the decorator or of a transaction. `lifecycle` is where to begin.
"""
