"""The contract of participants in HTTP: client, server, and their common parts."""
