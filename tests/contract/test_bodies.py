"""What a body may do to a participant: be refused, or be written. Nothing else."""

from __future__ import annotations

import datetime
import io
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from support.branches import Branch, arrow, json_lines, records
from support.kinds import KINDS_AND_DATABASES, started, variant
from support.participant import World, keep, select
from support.participant import refusal as why_refused
from support.texts import texts

from tracing_2pc.core import content
from tracing_2pc.outbox import Outbox
from tracing_2pc.participant import arrow_stream
from tracing_2pc.participant import json_lines as json_lines_module

TEXTS = texts("contract")

of_each_kind = pytest.mark.parametrize("made", KINDS_AND_DATABASES, indirect=True)
of_tables_and_json = pytest.mark.parametrize(
    "made",
    [
        variant("TaggedRows", "sqlite"),
        variant("TaggedRows", "postgresql"),
        variant("Outbox", "sqlite"),
    ],
    indirect=True,
)


@pytest.fixture(params=[variant("TaggedRows", "sqlite")])
def made(request, tmp_path) -> Iterator[tuple[World, str, str]]:
    """One kind: a body is read before any resource sees it."""
    yield from started(request, tmp_path)


def compressed(table: pa.Table, codec: str) -> bytes:
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue()


def refusal(world: World, branch: Branch) -> str:
    """Return why a branch is refused; nothing is left of it."""
    why = why_refused(world, branch, status=400)
    assert world.listed() == []
    return why


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("dictionary", [False, True])
def test_compressed_arrow_is_refused(world, codec, dictionary):
    """A few kilobytes could be millions of records: nothing of them is unpacked."""
    column: Any = pa.array(["x" * 100] * 200_000)
    column = column.dictionary_encode() if dictionary else column
    body = compressed(pa.table({"v": column}), codec)
    assert TEXTS["arrow without compression"] in refusal(world, Branch(body, 200_000))


@of_each_kind
def test_each_kind_refuses_what_is_compressed(world):
    """The others of these bodies meet the same reader."""
    body = compressed(pa.table({"v": ["x" * 100] * 2}), "zstd")
    assert TEXTS["arrow without compression"] in refusal(world, Branch(body, 2))


def test_records_without_bytes_are_bounded(world):
    """A column of nulls has no bytes, however long it is said to be."""
    many = 200_000_000
    body = arrow(pa.table({"v": pa.nulls(many)}))
    assert len(body) < 1000
    assert TEXTS["too many values"] in refusal(world, Branch(body, many))


@of_tables_and_json
def test_lists_without_bytes_are_bounded(world):
    """Nor has a list of nulls, which one record can hold."""
    offsets = pa.array([0, 2**31 - 1], pa.int32())
    lists = pa.ListArray.from_arrays(offsets, pa.nulls(2**31 - 1))
    body = arrow(pa.table({"v": lists}))
    is_outbox = isinstance(world.resource, Outbox)
    why = "too many values" if is_outbox else "a table has no such type"
    assert TEXTS[why] in refusal(world, Branch(body, 1))


def test_a_value_that_records_share_is_bounded(world, monkeypatch):
    """A dictionary's long value is written once, and is not multiplied for long."""
    monkeypatch.setattr(arrow_stream, "MAX_SHARED_BYTES", 1 << 20)
    for kind in (pa.dictionary(pa.int32(), pa.string()), pa.string_view()):
        few = pa.array(["x" * 10_000, "y"], pa.string()).dictionary_encode()
        column = few.take(pa.array([0, 1] * 1000, pa.int32())).cast(pa.string())
        shared = column.dictionary_encode() if pa.types.is_dictionary(kind) else column
        body = arrow(pa.table({"v": shared.cast(kind)}))
        assert TEXTS["plain columns"] in refusal(world, Branch(body, 2000))


@of_each_kind
def test_long_batches_are_written_in_pieces(world, monkeypatch):
    """However long a batch is, a piece of it is in memory; all of it arrives."""
    monkeypatch.setattr(arrow_stream, "SLICE_ROWS", 7)
    branch = records(id=list(range(100)), v=["x"] * 100)
    keep(world, "orders.7.1", branch)
    assert world.visible() == 100


@of_tables_and_json
def test_more_records_than_were_said_end_the_reading(world, monkeypatch):
    """They are counted as they come: the first one too many is the last one read."""
    monkeypatch.setattr(arrow_stream, "SLICE_ROWS", 10)
    body = records(id=list(range(100))).body
    assert TEXTS["a body has more records"] in refusal(world, Branch(body, 9))
    lines = Branch(b'{"id":1}\n' * 10 + b"no JSON", 9, content_type=content.NDJSON)
    assert TEXTS["a body has more records"] in refusal(world, lines)


@pytest.mark.parametrize("count", [1_501, 50_000])
@pytest.mark.parametrize("content_type", [content.ARROW, content.NDJSON])
def test_columns_of_a_table_are_bounded(world, count, content_type):
    """More than any table has are refused at once, and in words."""
    names = [f"c{n}" for n in range(count)]
    branch = json_lines(dict.fromkeys(names, 1))
    if content_type == content.ARROW:
        branch = Branch(arrow(pa.table({name: [1] for name in names})), 1)
    assert TEXTS["a table has no more columns"] in refusal(world, branch)


@of_tables_and_json
def test_as_many_columns_as_are_taken(world):
    """What is not refused for their number can be kept."""
    branch = records(**{f"c{n}": pa.array([True]) for n in range(1_500)})
    keep(world, "orders.7.1", branch)
    assert world.visible() == 1


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"null\n", "line 1 is not"),
        (b"null", "line 1 is not"),
        (b'{"a": 1}\n\nnull\n' * 9, "line 3 "),
        (b"\n", TEXTS["the body has none"]),
        (b'{"a": 1}\n{}\nnull', "line 2 is a record without"),
        (b"{}\n" * 400_000, "line 1 is a record without"),
        (b"\n" * 100 + b"null", "line 19: more empty lines"),
    ],
    ids=range(7),
)
def test_lines_that_are_no_objects(world, body, why):
    """They are refused by the number of the line, at the first; the process goes on."""
    branch = Branch(body, 1 if body == b"\n" else 18, content_type=content.NDJSON)
    assert refusal(world, branch).startswith(why)


@pytest.mark.parametrize(
    "line",
    [
        b'{"a": 1, "a": 2}',
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b'{"a": 1' + b"0" * 5000 + b"}",
        b'{"a": ' + b"[" * 100_000,
        b'{"a": "' + b"x" * json_lines_module.MAX_LINE + b'"}',
    ],
    ids=["twice", "NaN", "infinite", "digits", "deep", "long"],
)
def test_a_line_is_strict_json(world, line):
    """What one reader takes for this and another for that is refused, by its line."""
    branch = Branch(b'{"a": 5}\n' + line, 2, content_type=content.NDJSON)
    assert refusal(world, branch).startswith("line 2 ")


@pytest.mark.parametrize("content_type", [content.ARROW, content.NDJSON])
def test_no_records_at_all(world, content_type):
    """A branch of nothing votes read_only, whatever its schema lacks."""
    body = b"" if content_type == content.NDJSON else arrow(pa.table({}))
    branch = Branch(body, 0, content_type=content_type)
    length = {"CONTENT_LENGTH": str(len(body))}
    answer = world.prepare("orders.7.1", branch, environ_overrides=length)
    assert (answer.status_code, answer.get_json()["vote"]) == (200, "read_only")


@of_tables_and_json
def test_text_that_is_no_utf_8(world):
    """Named by its column: somebody has to find it."""
    bad = pa.array([b"a\xffb"]).view(pa.string())
    told = refusal(world, records(fine=["€"], name=bad))
    assert TEXTS["send bytes as binary"] in told
    assert "fine" not in told


@of_tables_and_json
@pytest.mark.parametrize("days", [2**36, -(2**36)])
def test_days_beyond_the_calendar(world, days):
    """A date64 that no calendar has is refused; by its column, where there are some."""
    column = pa.array([days * 86_400_000], pa.int64()).view(pa.date64())
    is_outbox = isinstance(world.resource, Outbox)
    why = "a record is no JSON" if is_outbox else "days that no table has"
    assert TEXTS[why] in refusal(world, records(day=column))


@of_tables_and_json
@pytest.mark.parametrize(
    "zone", ["Mars/Olympus", '"UTC"', "Europe", "../passwd", "+99"]
)
def test_time_zones_that_nobody_knows(world, zone):
    """A table keeps the instant, which needs no zone; a partner is told no guess."""
    branch = records(at=pa.array([0], pa.timestamp("us", zone)))
    if isinstance(world.resource, Outbox):
        assert TEXTS["no such time zone"] in refusal(world, branch)
        return
    keep(world, "orders.7.1", branch)
    ((at,),) = select(world.resource, "SELECT at FROM orders")
    at = datetime.datetime.fromisoformat(str(at).replace("Z", "+00:00"))
    assert at.timestamp() == 0
