"""Executors whose Python is not the driver's: what is missing there is said."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest

from tracing_2pc.core.states import TransactionState

OURS = Path(sysconfig.get_path("purelib"))
SPARKS = "pyspark", "py4j", "pyarrow", "pandas", "numpy", "dateutil", "pytz", "six.py"
pytestmark = [pytest.mark.cluster, pytest.mark.spark]


def test_executors_without_the_package(world, shared_driver):
    """One line names what is missing, where, and what to do; that helps.

    The next start ships an archive with an environment, and writes the batch.
    """
    world.write(range(1))
    job = world.job("without-package")
    bare = environment(world.folder / "bare")
    for name in SPARKS:
        for found in (*OURS.glob(name), *OURS.glob(f"{name}.libs")):
            (packages_of(bare) / found.name).symlink_to(found)
    shared_driver.start(job, python=str(bare / "bin" / "python"))
    assert "No module named 'tracing_2pc'" in shared_driver.end(job)
    assert world.state("without-package.0.1") is TransactionState.ABORTED
    told = shared_driver.log.read_text().splitlines()
    (line,) = [x for x in told if x.startswith("batch 0 of without-package ended")]
    assert "No module named 'tracing_2pc' in the Python of the executors" in line
    assert "PYSPARK_PYTHON" in line
    assert "spark.archives" in line

    whole = environment(world.folder / "whole")
    here = f"import site; site.addsitedir({str(OURS)!r})\n"
    (packages_of(whole) / "here.pth").write_text(here)
    archive = world.folder / "whole.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(whole, ".")
    shipped = {"spark.archives": f"{archive}#environment"}
    shared_driver.run(job, shipped, "./environment/bin/python")
    assert world.state("without-package.0.2") is TransactionState.COMMITTED
    world.assert_exactly_once(1)


def environment(folder: Path) -> Path:
    """Return one of the same Python, without any package."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder


def packages_of(folder: Path) -> Path:
    (packages,) = folder.glob("lib/python*/site-packages")
    return packages
