"""What several files here share."""

from cli_support import operator

__all__ = ["operator"]
