"""Traces and metrics: a transaction's steps in OpenTelemetry.

`decorator/` traces a user's sink, `transaction` the work of protocol and operators.
Both use spans and metrics by OpenTelemetry's API; `sdk/` alone knows its SDK.
"""
