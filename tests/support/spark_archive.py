"""What `spark_defaults.make_archive` runs: streams, by what most tests do with Spark.

python -m support.spark_archive FOLDER
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.spark import new_session, write_numbers


def same(batches: Iterator[Any]) -> Iterator[Any]:
    return batches


def main(folder: Path) -> None:
    write_numbers(folder, range(2))
    spark = new_session("archive")
    spark.sparkContext.setLogLevel("OFF")

    def write(batch: Any, _: int) -> None:
        batch.repartition(2).mapInArrow(same, "value long").collect()
        batch.write.mode("append").parquet(str(folder / "parquet"))

    reader = spark.readStream.schema("value long").option("maxFilesPerTrigger", 1)
    query = (
        reader.json(str(folder / "in"))
        .writeStream.option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .foreachBatch(write)
        .start()
    )
    query.awaitTermination()
    java = spark.sparkContext._gateway
    spark.stop()
    java.shutdown()
    java.proc.stdin.close()
    java.proc.wait()  # it writes the archive at its end


if __name__ == "__main__":
    main(Path(sys.argv[1]))
