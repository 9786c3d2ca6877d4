"""What several files here share."""

from cli_support import operator
from transaction_support import log, sink

__all__ = ["log", "operator", "sink"]
