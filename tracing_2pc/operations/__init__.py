"""The commands of an operator."""
