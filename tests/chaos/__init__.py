"""Real Spark and real services, killed and paused at random moments, and an oracle.

The job, the services and the oracle are those of the demo; where a kill falls is
chance. Each failpoint by its name is the business of `tests/crash`.
"""
