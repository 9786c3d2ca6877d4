"""The launch of a job as a transaction: built, deployed and started, or nothing.

A launch has two sinks, and no process needs to outlive the decision: an image that is
built and pushed under a staging tag (`BuiltImage`), and a job that is created and not
started (`SuspendedJob`). Services take part beside them, as in a stream's transaction.
"""

from tracing_2pc.launch.built_image import BuiltImage
from tracing_2pc.launch.launch_file import LaunchFile
from tracing_2pc.launch.launching import Launched, Phase, dry_run, launch
from tracing_2pc.launch.suspended_job import SuspendedJob

__all__ = [
    "BuiltImage",
    "LaunchFile",
    "Launched",
    "Phase",
    "SuspendedJob",
    "dry_run",
    "launch",
]
