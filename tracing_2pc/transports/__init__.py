"""How a sink reaches participants."""
