"""The state of transactions, and its causes: reads, and changes nothing."""
