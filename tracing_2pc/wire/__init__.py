"""What a participant is asked and answers, by whichever transport.

What belongs here is shared by transports, and opens no connection.
"""
