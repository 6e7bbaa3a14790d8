"""Reads candidates from an Arrow IPC stream and writes the response as one.

Streams are untrusted: their declared sizes and types are checked before they are decoded, and every value is validated
before it is used.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ranking.encoding.columns import is_list, to_id_array
from ranking.frozen.contributions import Contributions
from ranking.schema import InputFeature
from service.engine.errors import InvalidRequestError
from service.engine.request import RawFeatures
from service.engine.request_encoder import MissingFeatures
from service.engine.response import RankResult
from service.engine.validation import require_known
from service.engine.values import Values, to_numpy
from service.http.arrow_ipc import declared_sizes
from service.protocol.problems import MAX_QUOTED_LENGTH, Problem, malformed, too_many_candidates

REQUEST, RESPONSE = b"request", b"response"
"""Keys of a schema's metadata that hold the JSON of all other fields."""

READ_ERRORS = (pa.ArrowException, OSError, ValueError, LookupError, TypeError, OverflowError, MemoryError, struct.error)
"""Exceptions that PyArrow raises on a damaged stream."""


def read_stream(
    body: bytes,
    id_column: str,
    item_features: Mapping[str, InputFeature],
    max_candidates: int,
    max_bytes: int,
    max_length: int,
) -> tuple[bytes, RawFeatures]:
    """Read the JSON of a request's options, and its candidates.

    Args:
        body: IPC stream.
        id_column: column of item ids in the log.
        item_features: features of items, by column.
        max_candidates: maximum number of rows.
        max_bytes: maximum size of the columns after decompression and decoding of dictionaries.
        max_length: maximum number of characters of any text.

    Raises:
        Problem: 400 if the body is not an Arrow stream, 413 if it exceeds a limit.
        InvalidRequestError: a column is not valid.
    """
    try:
        buffer = pa.py_buffer(body)
        with pa.ipc.open_stream(buffer) as reader:
            schema = reader.schema
            metadata = schema.metadata or {}
            names = schema.names
        sizes = declared_sizes(buffer)
    except READ_ERRORS as error:
        raise _unreadable(error) from None
    if sizes.rows > max_candidates:
        raise too_many_candidates(sizes.rows, max_candidates)
    if sizes.batches > max_candidates + len(names):
        raise Problem(413, f"the stream has {sizes.batches} batches and dictionaries: send fewer, larger ones")
    _check_size(sizes.bytes, max_bytes)
    _check_columns(schema, id_column, item_features)
    try:
        batches = _decode(buffer)
    except READ_ERRORS as error:
        raise _unreadable(error) from None
    chunks = [(name, chunk) for batch in batches for name, chunk in zip(names, batch.columns, strict=True)]
    _check_size(sum(_decoded_bytes(chunk, max_bytes) for _, chunk in chunks), max_bytes)
    for name, chunk in chunks:
        if _max_length(chunk) > max_length:
            field = "items.id" if name == id_column else f"items.features.{name}"
            raise InvalidRequestError(field, f"holds text of more than {max_length} characters: send shorter ones")
    if len(batches) == 1:
        columns = dict(chunks)
    else:
        table = pa.Table.from_batches(batches, schema)
        columns = {name: table[name].combine_chunks() for name in names}
    return metadata.get(REQUEST, b"{}"), RawFeatures(_ids(columns.pop(id_column)), columns)


def _unreadable(error: Exception) -> Problem:
    fix = "send record batches in the streaming format of Arrow IPC, not in its file format"
    return malformed("body", f"not a readable Arrow stream: {fix} ({error!s:.200})")


def _check_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        excess = f"the columns take {size} bytes once they are decoded"
        raise Problem(413, f"{excess}; at most {max_bytes} are read: send fewer candidates")


def _check_columns(schema: pa.Schema, id_column: str, item_features: Mapping[str, InputFeature]) -> None:
    """Check the names and types of the columns before any of them is read.

    Raises:
        InvalidRequestError: a column is unknown, repeated, or of an unsupported type.
    """
    if id_column not in schema.names:
        reason = f"the stream has no column '{id_column}', which holds the candidates' ids in the log"
        raise InvalidRequestError("items.id", reason)
    for name, count in Counter(schema.names).items():
        if name != id_column:
            require_known("item", name, item_features)
        field = "items.id" if name == id_column else f"items.features.{name}"
        if count > 1:
            raise InvalidRequestError(field, f"the stream has {count} columns '{name}': send one")
        dtype = schema.field(name).type
        if not (_is_single(dtype) or (name != id_column and _is_any_list(dtype) and _is_single(dtype.value_type))):
            raise InvalidRequestError(
                field, f"holds {dtype!s:.{MAX_QUOTED_LENGTH}}: send numbers, integers, strings, or lists of those"
            )


def _is_single(dtype: pa.DataType) -> bool:
    if pa.types.is_dictionary(dtype):
        return _is_single(dtype.value_type) and not pa.types.is_dictionary(dtype.value_type)
    is_plain = pa.types.is_primitive(dtype) or pa.types.is_null(dtype) or pa.types.is_decimal(dtype)
    return bool(is_plain or _is_text(dtype))


def _is_text(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_string(dtype) or pa.types.is_large_string(dtype) or pa.types.is_string_view(dtype))


def _is_any_list(dtype: pa.DataType) -> bool:
    return is_list(dtype) or bool(pa.types.is_fixed_size_list(dtype))


def _decode(buffer: pa.Buffer) -> list[pa.RecordBatch]:
    """Decode all batches and validate every offset and character."""
    batches = []
    with pa.ipc.open_stream(buffer) as reader:
        for batch in reader:
            batch.validate(full=True)
            batches.append(batch)
    return batches


def _decoded_bytes(column: pa.Array, limit: int) -> int:
    """Return the bytes of a column after dictionaries, views and lists of nulls are expanded.

    Args:
        column: validated column.
        limit: size above which the result may be too low but exceeds the limit.
    """
    dtype = column.type
    if pa.types.is_primitive(dtype):
        return 8 * len(column)
    if pa.types.is_dictionary(dtype):
        sizes = _value_sizes(column.dictionary)
        return int(sizes[column.indices.drop_null().to_numpy()].sum()) + 8 * len(column)
    if _is_any_list(dtype):
        fixed = pa.types.is_fixed_size_list(dtype)
        count = len(column) * dtype.list_size if fixed else pc.sum(pc.list_value_length(column)).as_py() or 0
        lists = 8 * (len(column) + count)
        return lists if lists > limit else lists + _decoded_bytes(pc.list_flatten(column), limit)
    return int(_value_sizes(column).sum()) + 8 * len(column)


def _max_length(column: pa.Array) -> int:
    """Return the number of characters of the longest text, or 0 if there is none.

    Args:
        column: validated column whose decoded size is within the limit.
    """
    dtype = column.type
    if pa.types.is_primitive(dtype):
        return 0
    if pa.types.is_dictionary(dtype):
        return _max_length(column.dictionary)
    if _is_any_list(dtype):
        return _max_length(pc.list_flatten(column))
    return pc.max(pc.utf8_length(column.cast(pa.large_string()))).as_py() or 0 if _is_text(dtype) else 0


def _value_sizes(values: pa.Array) -> npt.NDArray[np.int64]:
    """Return the bytes of each text; 0 for types of fixed width."""
    if not len(values):
        return np.zeros(0, np.int64)
    if pa.types.is_string_view(values.type):
        words = np.frombuffer(values.buffers()[1], np.int32, 4 * len(values), 16 * values.offset)
        # The first of the four words of a view is its length.
        return np.where(values.is_valid(), words[::4], 0).astype(np.int64)
    if _is_text(values.type):
        sizes: npt.NDArray[np.int64] = pc.binary_length(values).cast(pa.int64()).fill_null(0).to_numpy()
        return sizes
    return np.zeros(len(values), np.int64)


def _ids(column: pa.Array) -> Values:
    """Return the ids as an array of int64 or as Arrow strings.

    Raises:
        InvalidRequestError: an id is null, or the type is not valid for ids.
    """
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()  # a null may be an index or an entry of the dictionary
    if column.null_count:
        row = column.is_valid().index(False).as_py()
        raise InvalidRequestError(f"items[{row}].id", "is null: every candidate needs an id")
    if _is_text(column.type):
        return column.cast(pa.string())
    if pa.types.is_null(column.type):  # no rows
        return np.empty(0, np.int64)
    try:
        if pa.types.is_integer(column.type):
            return to_numpy(column.cast(pa.int64()))
    except pa.ArrowInvalid:
        raise InvalidRequestError("items.id", "holds an integer of more than 64 bits, the sign included") from None
    raise InvalidRequestError("items.id", f"holds {column.type}: send integers or strings")


def write_stream(result: RankResult, summary: bytes) -> bytes:
    """Write a response as a stream with the columns id, score, scores (struct with a field per task) and missing.

    If the response explains its items, the column contributions has a struct with a field per task and feature.

    Args:
        result: ranked candidates.
        summary: JSON of the response without its items.
    """
    scores = [pa.array(column) for column in result.scores.T]
    columns = {
        "id": to_id_array(result.ids),
        "score": result.total,
        "scores": pa.StructArray.from_arrays(scores, result.tasks),
        "missing": _missing(result.missing),
    }
    if result.contributions is not None:
        columns["contributions"] = _contributions(result.contributions, len(result.ids))
    table = pa.table(columns, metadata={RESPONSE: summary})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    stream: bytes = sink.getvalue().to_pybytes()
    return stream


def _contributions(contributions: Contributions, count: int) -> pa.Array:
    """Return a struct of structs, by task and feature, for each of ``count`` items; null for items not explained."""
    explained = len(contributions.values)
    values = np.zeros((len(contributions.tasks), len(contributions.features), count), np.float32)
    values[:, :, :explained] = contributions.values.transpose(1, 2, 0)
    tasks = [pa.StructArray.from_arrays(list(map(pa.array, rows)), contributions.features) for rows in values]
    is_null = pa.array(np.arange(count) >= explained)
    return pa.StructArray.from_arrays(tasks, contributions.tasks, mask=is_null)


def _missing(missing: MissingFeatures) -> pa.Array:
    """Return the names of the missing features of each candidate as lists of dictionary entries [candidates]."""
    mask = missing.mask()
    _, features = np.nonzero(mask)
    names = pa.DictionaryArray.from_arrays(features.astype(np.int32), pa.array(missing.names, pa.string()))
    return pa.ListArray.from_arrays(np.append(0, np.cumsum(mask.sum(1))).astype(np.int32), names)
