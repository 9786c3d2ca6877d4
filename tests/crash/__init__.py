"""Every failpoint with real processes and real SIGKILL, then recovery, then an oracle.

Spark itself is stood in for here: a driver process runs the real `Coordinator` over
the real decision log, executor processes run the real half of a task, and a folder
plays Spark's checkpoint. That is what makes a point cost a second. With real Spark
`tests/spark/test_crash.py` does it, at a few points.
"""
