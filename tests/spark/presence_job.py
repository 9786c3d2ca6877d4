"""A job of one batch that ends in a chosen way: presence_job.py FOLDER THEN."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["PYSPARK_PYTHON"] = sys.executable

from support.spark import new_session, read_numbers, write_numbers

from tracing_2pc import TableSink
from tracing_2pc.spark import two_phase_commit

folder, then = sys.argv[1:]
write_numbers(Path(folder), range(1))
spark = new_session("presence")
callback = two_phase_commit(
    TableSink(f"sqlite:///{folder}/table.db", "numbers"),
    application="orders",
    log=f"sqlite:///{folder}/log.db",
)
stream = read_numbers(spark, folder).writeStream.foreachBatch(callback)
query = stream.option("checkpointLocation", f"{folder}/checkpoint").start()
query.processAllAvailable()
Path(folder, "written").touch()
if then == "raise":
    raise ValueError("of its own")
if then == "interrupt":
    raise KeyboardInterrupt
if then == "wait":
    query.awaitTermination()
