"""The ways in from Spark."""
