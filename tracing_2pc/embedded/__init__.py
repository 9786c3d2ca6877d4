"""Participants without a service: whoever asks one opens its database itself.

What belongs here: the transport (`participant.py`), what an address names
(`addresses.py`), when connections are closed (`idle.py`), and sinks of one participant
that are written in code (`sinks.py`).
"""
