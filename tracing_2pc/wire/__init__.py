"""A participant's requests and answers, in any transport.

Modules here are shared by transports, and open no connection.
"""
