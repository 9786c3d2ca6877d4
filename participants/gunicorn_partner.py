"""The partner's gunicorn settings: one process, because its faults are in memory."""

worker_class = "gthread"
workers = 1
threads = 8
graceful_timeout = 5
control_socket_disable = True
