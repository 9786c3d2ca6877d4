"""`python -m support.spark_defaults`: what makes a Spark of a test start quickly.

A session with its first batch costs 20 s of processor time as PySpark comes, and 5 s
with these settings: a Java compiler that is done sooner, checkpoint files that start no
process to set their permissions, and Java's own archive of loaded classes. The archive
is made at set-up (`make tools`), for one version of PySpark and one Java; without it,
or with another Java, everything works, and is slower.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
PYSPARK: Final = version("pyspark")
ARCHIVE: Final = ROOT / ".cache" / "spark" / f"classes-{PYSPARK}.jsa"
ARGUMENTS: Final = "PYSPARK_SUBMIT_ARGS"
PROPERTIES: Final = "TPC_TESTS_SPARK_PROPERTIES"
"""The variable with the file of these settings, for who calls `spark-submit` itself."""

JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_STREAMING: Final = "org.apache.spark.sql.execution.streaming" + (
    ".checkpointing" if PYSPARK >= "4.1" else ""
)
_FILES: Final = "spark.sql.streaming.checkpointFileManagerClass"
OWN_CHECKPOINTS: Final = {_FILES: f"{_STREAMING}.FileContextBasedCheckpointFileManager"}
"""Checkpoint files as Spark writes them by itself."""

SETTINGS: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.executor.extraJavaOptions": JAVA,
    "spark.sql.shuffle.partitions": "2",
    _FILES: f"{_STREAMING}.FileSystemBasedCheckpointFileManager",
    "spark.ui.enabled": "false",
}


def use() -> None:
    """Let each Spark that is started from here on have these settings.

    What is set already is left as it is: by who started this process, or by a person.
    """
    if ARGUMENTS not in os.environ and "SPARK_CONF_DIR" not in os.environ:
        shared = f" -XX:SharedArchiveFile={ARCHIVE}" if ARCHIVE.exists() else ""
        _use(Path(tempfile.mkdtemp(prefix="tpc-spark-")), f"{JAVA}{shared}")


def _use(folder: Path, java: str) -> None:
    settings = SETTINGS | {"spark.driver.extraJavaOptions": java}
    file = folder / "spark.properties"
    file.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    os.environ[PROPERTIES] = str(file)
    os.environ[ARGUMENTS] = f"--properties-file {file} pyspark-shell"


def make_archive() -> None:
    """Run a stream in a Java that keeps the classes it has loaded."""
    ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
    unfinished = ARCHIVE.with_suffix(".part")
    unfinished.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        _use(Path(folder), f"{JAVA} -XX:ArchiveClassesAtExit={unfinished}")
        log = Path(folder) / "log"
        with log.open("wb") as output:
            done = subprocess.run(
                [sys.executable, "-m", "support.spark_defaults", folder],
                stdout=output,
                stderr=output,
                check=False,
            )
        if done.returncode or not unfinished.exists():
            sys.exit(f"no archive of Spark's classes:\n{log.read_text()[-2000:]}")
    unfinished.rename(ARCHIVE)


def run_streams(folder: Path) -> None:
    """Run what the archive is made of: a stream, by what most tests do with Spark."""
    from support.spark import new_session, read_numbers, started, write_numbers

    write_numbers(folder, range(2))
    spark = new_session("archive")
    spark.sparkContext.setLogLevel("OFF")

    def write(batch: Any, _: int) -> None:
        batch.repartition(2).mapInArrow(lambda same: same, "value long").collect()
        batch.write.mode("append").parquet(str(folder / "parquet"))

    writer = read_numbers(spark, folder).writeStream.foreachBatch(write)
    started(writer, folder / "checkpoint").awaitTermination()
    java = spark.sparkContext._gateway
    spark.stop()
    java.shutdown()
    java.proc.stdin.close()
    java.proc.wait()  # it writes the archive at its end


if __name__ == "__main__":
    if folders := sys.argv[1:]:
        run_streams(Path(*folders))
    elif not ARCHIVE.exists():
        make_archive()
