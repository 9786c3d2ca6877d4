"""Traces and metrics: what a transaction's steps tell OpenTelemetry.

`decorator/` traces a user's sink, `transaction` what the protocol and operators do.
Both use spans and metrics by OpenTelemetry's API; `sdk/` alone knows its SDK.
"""
