"""The ways to hold a prepared branch."""
