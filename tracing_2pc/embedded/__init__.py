"""Participants without a service: each caller opens the database itself.

It has the transport (`participant.py`), the meaning of addresses (`addresses.py`), the
time when connections are closed (`idle.py`), and sinks of one participant that are
written in code (`sinks.py`).
"""
