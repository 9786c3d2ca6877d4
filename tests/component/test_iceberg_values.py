"""`IcebergSink`: each value is in a file once, and in the partition of its own."""

from __future__ import annotations

import datetime
import decimal
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from support.file_job import prepared, received
from support.lake import NAME, Lake
from support.texts import texts

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.model import TransactionId

TEXTS = texts("sinks")
T = TransactionId("orders", 0, 1)
TWIN = "shop.twin"


def batch_of(kind: pa.DataType, values: list[Any]) -> pa.RecordBatch:
    ids = pa.array(range(len(values)), pa.int64())
    return pa.RecordBatch.from_arrays([ids, pa.array(values, kind)], ["id", "v"])


def commit(lake: Lake, *batches: pa.RecordBatch) -> None:
    sink = lake.sink()
    sink.check_job("orders")
    sink.commit_transaction(str(T), [received(prepared(sink, *batches))])


def partitions(lake: Lake, name: str = NAME) -> list[tuple[int, list[str]]]:
    """Return the ids in each file, and its partition; 0.0 and -0.0 differ by name."""
    return sorted(
        (n, [repr(value) for value in file.partition._data])
        for file in (task.file for task in lake.table(name).scan().plan_files())
        for n in stored(file.file_path, "id")
    )


def stored(path: str, column: str) -> list[Any]:
    """Return a column of a file: pyiceberg reads a null list of structs as empty."""
    table = parquet.ParquetFile(path.removeprefix("file://")).read()
    return table.column(column).to_pylist()


def values_in(lake: Lake, column: str = "v") -> list[Any]:
    (task,) = lake.table().scan().plan_files()
    return stored(task.file.file_path, column)


IDENTITY, VOID, BUCKET = IdentityTransform(), VoidTransform(), BucketTransform(7)
DATES = [IDENTITY, BUCKET, YearTransform(), MonthTransform(), DayTransform()]
WIDTH = 10
UTC = datetime.timezone.utc
KINDS: list[tuple[Any, pa.DataType, Any, list[Any]]] = [
    (BooleanType(), pa.bool_(), st.booleans(), [IDENTITY, VOID]),
    *(
        (
            kind,
            arrow,
            # The last numbers wrap around, as in Java.
            st.integers(-(2**bits) + WIDTH, 2**bits - 1) | st.integers(-11, 11),
            [IDENTITY, BUCKET, TruncateTransform(WIDTH)],
        )
        for kind, arrow, bits in [
            (IntegerType(), pa.int32(), 31),
            (LongType(), pa.int64(), 63),
        ]
    ),
    *(
        (
            kind,
            arrow,
            st.floats(width=width, allow_nan=False) | st.sampled_from([0.0, -0.0]),
            [IDENTITY, VOID],
        )
        for kind, arrow, width in [
            (FloatType(), pa.float32(), 32),
            (DoubleType(), pa.float64(), 64),
        ]
    ),
    (
        StringType(),
        pa.string(),
        st.text(max_size=5) | st.sampled_from(["", "null", "é😀x", "/"]),
        [IDENTITY, BUCKET, TruncateTransform(2)],
    ),
    (
        BinaryType(),
        pa.binary(),
        st.binary(max_size=5),
        [IDENTITY, BUCKET, TruncateTransform(2)],
    ),
    (FixedType(4), pa.binary(4), st.binary(min_size=4, max_size=4), [IDENTITY, BUCKET]),
    (UUIDType(), pa.uuid(), st.uuids().map(lambda of: of.bytes), [BUCKET]),
    *(
        (
            DecimalType(digits, 2),
            pa.decimal128(digits, 2),
            st.integers(-(10**digits) + 100, 10**digits - 1).map(
                lambda n: decimal.Decimal(n).scaleb(-2, decimal.Context(50))
            ),
            [IDENTITY, BUCKET, TruncateTransform(50)],
        )
        for digits in (9, 18, 38)
    ),
    (DateType(), pa.date32(), st.dates(), DATES),
    (TimeType(), pa.time64("us"), st.times(), [IDENTITY]),
    (
        TimestampType(),
        pa.timestamp("us"),
        st.datetimes(),
        [*DATES, HourTransform()],
    ),
    (
        TimestamptzType(),
        pa.timestamp("us", "UTC"),
        st.datetimes(timezones=st.just(UTC)),
        [*DATES, HourTransform()],
    ),
]


@st.composite
def columns(draw: Any) -> tuple[Any, pa.DataType, list[Any], Any]:
    """Draw a column: its types, some values, and a transform of it."""
    kind, arrow, values, transforms = draw(st.sampled_from(KINDS))
    some = draw(st.lists(st.none() | values, min_size=1, max_size=6))
    return kind, arrow, some, draw(st.sampled_from(transforms))


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(columns())
@example((DoubleType(), pa.float64(), [0.0, -0.0, None, 0.0], IDENTITY))
@example((FloatType(), pa.float32(), [-0.0, 0.0], IDENTITY))
@example((StringType(), pa.string(), ["None", None, ""], IDENTITY))
@example((LongType(), pa.int64(), [-1, -10, -11, 0, None], TruncateTransform(WIDTH)))
@example(
    (
        TimestampType(),
        pa.timestamp("us"),
        [datetime.datetime.fromisoformat("1969-12-31T23:59:59.999999"), None],
        YearTransform(),
    )
)
def test_each_row_is_once_in_the_partition_that_pyiceberg_puts_it_into(tmp_path, drawn):
    """As its own append does, which is right for one row at a time."""
    kind, arrow, values, transform = drawn
    lake = Lake(Path(tmp_path, str(len([*tmp_path.iterdir()]))))
    lake.folder.mkdir()
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "v", kind))
    by = PartitionSpec(PartitionField(2, 1000, transform, "p"))
    for name in (NAME, TWIN):
        lake.make(schema, name=name, partition_spec=by)
    given = batch_of(arrow, values)
    twin = lake.table(TWIN)
    for row in range(len(values)):
        twin.append(pa.Table.from_batches([given.slice(row, 1)]))
    commit(lake, given)
    assert partitions(lake) == partitions(lake, TWIN)


@pytest.mark.parametrize(
    ("kind", "arrow"), [(FloatType(), "float"), (DoubleType(), "double")]
)
def test_nan_is_one_partition(tmp_path, kind, arrow, monkeypatch):
    """Whatever its bits, in one file, also when it comes again; others have theirs."""
    monkeypatch.setattr("tracing_2pc.sinks.iceberg_files.IN_MEMORY", 1)
    lake = Lake(tmp_path)
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "v", kind))
    lake.make(
        schema, partition_spec=PartitionSpec(PartitionField(2, 1000, IDENTITY, "p"))
    )
    values = [math.nan, -0.0, -math.nan, 0.0, None, math.inf, -0.0]
    given = batch_of(pa.type_for_alias(arrow), values)
    commit(lake, given.slice(0, 2), given.slice(2))
    names = ["nan", "-0.0", "nan", "0.0", "None", "inf", "-0.0"]
    assert partitions(lake) == [(n, [of]) for n, of in enumerate(names)]
    assert len([*lake.table().scan().plan_files()]) == 5
    for query, ids in {
        "v IS NAN": [0, 2],
        "v IS NULL": [4],
        "v = 0.0": [1, 3, 6],
    }.items():
        assert sorted(lake.table().scan(query).to_arrow()["id"].to_pylist()) == ids


def test_partitions_by_several_fields_of_one_column_and_inside_of_structs(tmp_path):
    """One of a name with a dot; a struct that is null has nothing inside."""
    lake = Lake(tmp_path)
    inner = StructType(
        NestedField(5, "x.y", IntegerType()),
        NestedField(6, "in", StructType(NestedField(7, "z", StringType()))),
    )
    schema = Schema(
        NestedField(1, "id", LongType()),
        NestedField(2, "a.b", TimestamptzType()),
        NestedField(4, "s", inner),
    )
    fields = [
        (2, DayTransform()),
        (2, BUCKET),
        (5, IDENTITY),
        (7, TruncateTransform(1)),
    ]
    by = (
        PartitionField(source, 1000 + n, transform, f"p{n}")
        for n, (source, transform) in enumerate(fields)
    )
    lake.make(schema, partition_spec=PartitionSpec(*by))
    at = datetime.datetime(1969, 12, 31, tzinfo=UTC)
    arrow = lake.table().schema().as_arrow()
    rows = [
        {"id": 0, "a.b": at, "s": {"x.y": 1, "in": {"z": "ab"}}},
        {"id": 1, "a.b": None, "s": {"x.y": None, "in": None}},
        {"id": 2, "a.b": at, "s": None},
        {"id": 3, "a.b": at, "s": {"x.y": 1, "in": {"z": "ac"}}},
    ]
    commit(lake, pa.RecordBatch.from_pylist(rows, schema=arrow))
    bucket = BUCKET.transform(TimestamptzType())(int(at.timestamp() * 10**6))
    first = ["-1", str(bucket), "1", "'a'"]
    assert partitions(lake) == [
        (0, first),
        (1, ["None"] * 4),
        (2, [*first[:2], "None", "None"]),
        (3, first),
    ]
    assert lake.rows() == rows


# --- what is null, and what is in it --------------------------------------------------

X = StructType(NestedField(5, "x", IntegerType(), required=True))
LOOSE = pa.struct([pa.field("x", pa.int32())])
STRICT = pa.struct([pa.field("x", pa.int32(), nullable=False)])


def nested(kind: Any) -> Schema:
    return Schema(NestedField(1, "id", LongType()), NestedField(2, "v", kind))


def of_list(of: Any, *, required: bool = False) -> Any:
    return ListType(3, of, element_required=required)


def of_map(of: Any, *, required: bool = False) -> Any:
    return MapType(3, StringType(), 4, of, value_required=required)


@pytest.mark.parametrize("inner", [LOOSE, STRICT], ids=["nullable", "not null"])
@pytest.mark.parametrize(
    ("kind", "arrow", "values"),
    [
        (X, lambda of: of, [{"x": 1}, None]),
        (of_list(X), pa.list_, [[{"x": 1}, None], None, []]),
        (of_list(X), pa.large_list, [[{"x": 1}, None], None, []]),
        (
            of_map(X),
            lambda of: pa.map_(pa.string(), of),
            [[("k", {"x": 1}), ("l", None)], None, []],
        ),
        (
            StructType(NestedField(8, "in", X, required=True)),
            lambda of: pa.struct([pa.field("in", of)]),
            [{"in": {"x": 1}}, None],
        ),
        (
            StructType(NestedField(8, "l", of_list(X), required=True)),
            lambda of: pa.struct([pa.field("l", pa.list_(of))]),
            [{"l": [{"x": 1}, None]}, None, {"l": []}],
        ),
    ],
)
def test_what_is_null_has_nothing_inside_that_must_not_be(
    tmp_path, kind, arrow, values, inner
):
    """Spark declares all that is inside as nullable; in parts of a batch, too."""
    lake = Lake(tmp_path)
    lake.make(nested(kind))
    given = batch_of(arrow(inner), [*values, *values])
    commit(lake, given.slice(0, 1), given.slice(1))
    assert values_in(lake) == [*values, *values]


@pytest.mark.parametrize(
    ("kind", "arrow", "value", "column"),
    [
        (X, LOOSE, {"x": None}, "v.x"),
        (of_list(X), pa.list_(LOOSE), [{"x": 1}, {"x": None}], "v.element.x"),
        (
            of_list(LongType(), required=True),
            pa.list_(pa.int64()),
            [1, None],
            "v.element",
        ),
        (
            of_map(LongType(), required=True),
            pa.map_(pa.string(), pa.int64()),
            [("k", None)],
            "v.value",
        ),
        (of_map(X), pa.map_(pa.string(), LOOSE), [("k", {"x": None})], "v.value.x"),
    ],
)
def test_a_null_inside_of_what_is_there_is_refused(
    tmp_path, kind, arrow, value, column
):
    """By the name of the column, with the path to it."""
    lake = Lake(tmp_path)
    lake.make(nested(kind))
    with pytest.raises(ConfigurationError, match=TEXTS["nulls"].format(column=column)):
        prepared(lake.sink(), batch_of(arrow, [None, value]))
    assert lake.left() == []


@pytest.mark.parametrize("arrow", [pa.large_string(), pa.list_(pa.large_string())])
def test_large_forms_of_a_type(tmp_path, arrow):
    """Are the same values, at any depth."""
    lake, is_list = Lake(tmp_path), pa.types.is_list(arrow)
    lake.make(nested(of_list(StringType()) if is_list else StringType()))
    values = [["a", None], None] if is_list else ["a", None]
    commit(lake, batch_of(arrow, values))
    assert values_in(lake) == values


@pytest.mark.parametrize(
    ("kind", "arrow"),
    [
        (StringType(), pa.dictionary(pa.int32(), pa.string())),
        (TimestampType(), pa.timestamp("ns")),
        (TimestampType(), pa.timestamp("us", "UTC")),
        (TimestamptzType(), pa.timestamp("us")),
        (FixedType(4), pa.binary()),
        (DecimalType(9, 2), pa.decimal128(9, 3)),
    ],
)
def test_another_type_is_refused_with_its_name(tmp_path, kind, arrow):
    """None is read as another one, and no digit is cut off."""
    lake = Lake(tmp_path)
    lake.make(nested(kind))
    with pytest.raises(ConfigurationError, match="column 'v' is"):
        prepared(lake.sink(), batch_of(arrow, [None]))


FAR = [-719_163, 2_932_897]
DAY = 86_400_000_000


@pytest.mark.parametrize("days", FAR)
@pytest.mark.parametrize(
    ("kind", "arrow", "unit"),
    [
        (DateType(), pa.date32(), 1),
        (TimestampType(), pa.timestamp("us"), DAY),
        (TimestamptzType(), pa.timestamp("us", "UTC"), DAY),
    ],
)
@pytest.mark.parametrize("is_list", [False, True])
def test_a_date_whose_bounds_nobody_can_write_is_refused(
    tmp_path, kind, arrow, unit, days, is_list
):
    """With its column; the first and the last day of the years 1 to 9999 are kept."""
    lake = Lake(tmp_path)
    lake.make(nested(of_list(kind) if is_list else kind))
    nearest = [(days + (1 if days < 0 else -1)) * unit, (days > 0) * (days * unit - 1)]

    def batch(*numbers: int) -> pa.RecordBatch:
        plain = pa.array(numbers, pa.int32() if unit == 1 else pa.int64()).cast(arrow)
        lists = pa.ListArray.from_arrays([*range(len(numbers) + 1)], plain)
        ids = pa.array(range(len(numbers)), pa.int64())
        columns = [ids, lists if is_list else plain]
        return pa.RecordBatch.from_arrays(columns, ["id", "v"])

    says = TEXTS["far"].format(column=r"v\.element" if is_list else "v")
    with pytest.raises(ConfigurationError, match=says) as caught:
        prepared(lake.sink(), batch(0, days * unit))
    assert "\n" not in str(caught.value)
    commit(lake, batch(*nearest))
    assert len(values_in(lake)) == 2
