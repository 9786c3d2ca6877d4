"""What is read in Spark's checkpoint: which batch comes next, and what is not whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.texts import texts

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.inspection.checkpoint import Checkpoint, read_checkpoint

TEXTS = texts("unit")
TORN, ENDS = TEXTS["a torn file"].format, TEXTS["ends that do not fit"].format

QUERY = "df25888b-4d0a-4f6f-9f8e-0c3f5c1f2a11"
OFFSETS = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1}\n{"logOffset":3}'
COMMITS = 'v1\n{"nextBatchWatermarkMs":0}'


@pytest.fixture
def folder(tmp_path) -> Path:
    """Batches 98 to 100 are begun, 98 and 99 committed; as Spark leaves it."""
    (tmp_path / "metadata").write_text(f'{{"id":"{QUERY}"}}')
    for part, batches, text in (
        ("offsets", (98, 99, 100), OFFSETS),
        ("commits", (98, 99), COMMITS),
    ):
        (tmp_path / part).mkdir()
        for batch in batches:
            (tmp_path / part / str(batch)).write_text(text)
            (tmp_path / part / f".{batch}.crc").write_bytes(b"crc\0")
        (tmp_path / part / ".101.5a2c.tmp").touch()
    return tmp_path


def test_the_last_batch_without_a_commit_is_run_again(folder):
    """Its number and the query's id; what begins with a dot is not a batch."""
    read = read_checkpoint(str(folder))
    assert read == Checkpoint(folder, QUERY, last=100, in_flight=True)
    assert read.next == 100


def test_behind_a_commit_comes_the_next_batch(folder):
    """Nothing is in flight then."""
    (folder / "commits" / "100").write_text(COMMITS)
    read = read_checkpoint(str(folder))
    assert (read.in_flight, read.next) == (False, 101)


def test_the_first_batch_in_flight(folder):
    """There is no commit yet at all."""
    for file in [*(folder / "commits").iterdir(), *(folder / "offsets").iterdir()]:
        file.unlink()
    (folder / "offsets" / "0").write_text(OFFSETS)
    assert read_checkpoint(str(folder)) == Checkpoint(folder, QUERY, 0, in_flight=True)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"metadata": None}, "metadata: No such file"),
        ({"metadata": ""}, TEXTS["no query id"]),
        ({"metadata": '{"id":"df2588'}, TEXTS["no query id"]),
        ({"metadata": "[1]"}, TEXTS["no query id"]),
        ({"offsets/100": ""}, TORN(file="offsets/100")),
        ({"offsets/100": "v1\n"}, TORN(file="offsets/100")),
        ({"offsets/100": 'v1\n{"batchWater'}, TORN(file="offsets/100")),
        ({"commits/100": "v1\n"}, TORN(file="commits/100")),
        ({"commits/99": None}, ENDS(offsets=100, commits=98)),
        ({"commits/101": COMMITS}, ENDS(offsets=100, commits=101)),
        (dict.fromkeys(("offsets/98", "offsets/99", "offsets/100")), TEXTS["no batch"]),
    ],
)
def test_what_is_not_whole_is_refused(folder, changes, said):
    """In one line that names what is wrong: half a copy proves nothing."""
    for name, text in changes.items():
        if text is None:
            (folder / name).unlink()
        else:
            (folder / name).write_text(text)
    with pytest.raises(ConfigurationError, match=said) as refused:
        read_checkpoint(str(folder))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("missing", ["", "/offsets", "/commits"])
def test_a_folder_that_is_not_there_is_named(tmp_path, missing):
    """A wrong path is no empty checkpoint."""
    for part in ("offsets", "commits") if missing else ():
        (tmp_path / "ck" / part).mkdir(parents=True, exist_ok=True)
        (tmp_path / "ck" / "metadata").write_text(f'{{"id":"{QUERY}"}}')
    if missing:
        (tmp_path / f"ck{missing}").rmdir()
    with pytest.raises(ConfigurationError, match="No such file"):
        read_checkpoint(str(tmp_path / "ck"))


@pytest.mark.parametrize("url", ["s3://bucket/ck", "hdfs://host/ck", "dbfs:/ck"])
def test_a_url_is_to_be_copied_first(url):
    """Only a folder of this machine is read: the message names what to copy."""
    with pytest.raises(ConfigurationError, match=TEXTS["what to copy"]):
        read_checkpoint(url)
