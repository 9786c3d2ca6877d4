"""Services that run: the ledger, the notifier and a partner, with the demo's data."""
