"""SkyWalking's folder is a package of its own: it could be published by itself."""

import shutil
import subprocess
import sys
from pathlib import Path

import tracing_2pc.skywalking

FOLDER = Path(tracing_2pc.skywalking.__file__).parent

PROGRAM = """
import pkgutil, sys
import elsewhere
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
names = [name for _, name, _ in pkgutil.iter_modules(elsewhere.__path__)]
for name in names:
    __import__(f"elsewhere.{name}")
from elsewhere.propagator import SkyWalkingPropagator
from elsewhere.start import start
provider = TracerProvider(
    resource=Resource({"service.name": "user"}), shutdown_on_exit=False
)
start("http://127.0.0.1:1", provider=provider)
headers = {}
with provider.get_tracer("user").start_as_current_span("work"):
    SkyWalkingPropagator().inject(headers)
assert elsewhere.parse_sw8(headers["sw8"]).service == "user"
print(*(name for name in sys.modules if name.startswith("tracing_2pc")))
"""


def test_a_copy_of_the_folder_works_under_another_name(tmp_path):
    """It is imported whole, makes a header, and nothing else of ours is loaded."""
    shutil.copytree(FOLDER, tmp_path / "elsewhere")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stderr, done.stdout.strip()) == ("", "")
