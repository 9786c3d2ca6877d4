"""The one place that knows the OpenTelemetry SDK."""
