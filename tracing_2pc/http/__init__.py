"""The contract of participants in HTTP: its client, its server, and what they share."""
