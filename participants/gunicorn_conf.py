"""The shipped settings for one process of eight threads, which a failpoint ends alone.

`WEB_CONCURRENCY` says how many processes there are.
"""

import os

from tracing_2pc.http.gunicorn_conf import *  # noqa: F403 - gunicorn reads all names

workers = int(os.environ.get("WEB_CONCURRENCY", "1"))
threads = 8
