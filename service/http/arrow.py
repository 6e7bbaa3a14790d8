"""Candidates as an Arrow stream in, the answer as one out.

Streams come from strangers: what they declare is checked before it is decoded, and all of it before it is used.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ranking.encoding.columns import to_id_array
from ranking.schema import InputFeature
from service.engine.errors import InvalidRequestError
from service.engine.missing import Missing
from service.engine.response import RankResult
from service.engine.validation import Candidates, require_known
from service.engine.values import Values, to_numpy
from service.http.arrow_ipc import declared
from service.protocol.problems import Problem, malformed, too_many

REQUEST, RESPONSE = b"request", b"response"
"""Keys of a schema's metadata, under which JSON carries what is no column."""

FAULTS = (pa.ArrowException, OSError, ValueError, LookupError, TypeError, OverflowError, MemoryError, struct.error)
"""What reading a broken stream can raise."""


def read_stream(
    body: bytes,
    id_column: str,
    readable: Mapping[str, InputFeature],
    max_candidates: int,
    max_bytes: int,
    max_text: int,
) -> tuple[bytes, Candidates]:
    """The request's JSON, and its candidates.

    Args:
        body: an IPC stream.
        id_column: of the items, in the log.
        readable: columns that an item may have beside it.
        max_candidates: at most so many rows.
        max_bytes: at most so much once it is decompressed and its dictionaries are decoded.
        max_text: characters of any text.

    Raises:
        Problem: 400 no Arrow stream; 413 more than allowed.
        InvalidRequestError: a column is invalid.
    """
    try:
        buffer = pa.py_buffer(body)
        with pa.ipc.open_stream(buffer) as reader:
            schema = reader.schema
            metadata = schema.metadata or {}
            names = schema.names
        stream = declared(buffer)
    except FAULTS as error:
        raise _broken(error) from None
    if stream.rows > max_candidates:
        raise too_many(stream.rows, max_candidates)
    if stream.batches > max_candidates + len(names):
        raise Problem(413, f"the stream has {stream.batches} batches and dictionaries: send fewer, larger ones")
    _require_size(stream.size, max_bytes)
    _require_columns(schema, id_column, readable)
    try:
        batches = _decoded(buffer)
    except FAULTS as error:
        raise _broken(error) from None
    chunks = [(name, chunk) for batch in batches for name, chunk in zip(names, batch.columns, strict=True)]
    _require_size(sum(_plain_size(chunk, max_bytes) for _, chunk in chunks), max_bytes)
    for name, chunk in chunks:
        if _longest(chunk) > max_text:
            field = "items.id" if name == id_column else f"items.features.{name}"
            raise InvalidRequestError(field, f"holds text of more than {max_text} characters: send shorter ones")
    if len(batches) == 1:
        columns = dict(chunks)
    else:
        table = pa.Table.from_batches(batches, schema)
        columns = {name: table[name].combine_chunks() for name in names}
    return metadata.get(REQUEST, b"{}"), Candidates(_ids(columns.pop(id_column)), columns)


def _broken(error: Exception) -> Problem:
    return malformed("body", f"no Arrow stream that can be read: {error!s:.200}")


def _require_size(size: int, most: int) -> None:
    if size > most:
        raise Problem(413, f"the columns take {size} bytes, however few were sent; at most {most} are read: send fewer")


def _require_columns(schema: pa.Schema, id_column: str, readable: Mapping[str, InputFeature]) -> None:
    """Names and types of the columns, before any of them is read.

    Raises:
        InvalidRequestError: a column is unknown, repeated, or of an unsupported type.
    """
    if id_column not in schema.names:
        raise InvalidRequestError(
            "items.id", f"the stream has no column '{id_column}', which holds the candidates' ids in the log"
        )
    for name, times in Counter(schema.names).items():
        if name != id_column:
            require_known("item", name, readable)
        field = "items.id" if name == id_column else f"items.features.{name}"
        if times > 1:
            raise InvalidRequestError(field, f"the stream has {times} columns '{name}': send one")
        kind = schema.field(name).type
        if not (_is_single(kind) or (name != id_column and _is_list(kind) and _is_single(kind.value_type))):
            raise InvalidRequestError(field, f"holds {kind!s:.80}: send numbers, integers, strings, or lists of those")


def _is_single(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_single(kind.value_type) and not pa.types.is_dictionary(kind.value_type)
    return bool(pa.types.is_primitive(kind) or pa.types.is_null(kind) or _is_text(kind) or pa.types.is_decimal(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _decoded(buffer: pa.Buffer) -> list[pa.RecordBatch]:
    """All batches, validated down to each offset and character."""
    batches = []
    with pa.ipc.open_stream(buffer) as reader:
        for batch in reader:
            batch.validate(full=True)
            batches.append(batch)
    return batches


def _plain_size(column: pa.Array, limit: int) -> int:
    """Bytes of a column without dictionaries, views or lists of nulls, which take less than what they stand for.

    Args:
        column: validated.
        limit: beyond which it does not matter how large it is.
    """
    kind = column.type
    if pa.types.is_primitive(kind):
        return 8 * len(column)
    if pa.types.is_dictionary(kind):
        sizes = _value_sizes(column.dictionary)
        return int(sizes[column.indices.drop_null().to_numpy()].sum()) + 8 * len(column)
    if _is_list(kind):
        fixed = pa.types.is_fixed_size_list(kind)
        count = len(column) * kind.list_size if fixed else pc.sum(pc.list_value_length(column)).as_py() or 0
        lists = 8 * (len(column) + count)
        return lists if lists > limit else lists + _plain_size(pc.list_flatten(column), limit)
    return int(_value_sizes(column).sum()) + 8 * len(column)


def _longest(column: pa.Array) -> int:
    """Characters of the longest text; 0 if there is none.

    Args:
        column: validated, and not too large once it is decoded.
    """
    kind = column.type
    if pa.types.is_primitive(kind):
        return 0
    if pa.types.is_dictionary(kind):
        return _longest(column.dictionary)
    if _is_list(kind):
        return _longest(pc.list_flatten(column))
    return pc.max(pc.utf8_length(column.cast(pa.large_string()))).as_py() or 0 if _is_text(kind) else 0


def _value_sizes(values: pa.Array) -> npt.NDArray[np.int64]:
    """Bytes of each text; 0 of what has a fixed width."""
    if not len(values):
        return np.zeros(0, np.int64)
    if pa.types.is_string_view(values.type):
        words = np.frombuffer(values.buffers()[1], np.int32, 4 * len(values), 16 * values.offset)
        return np.where(values.is_valid(), words[::4], 0).astype(np.int64)  # the first of a view's four is its length
    if _is_text(values.type):
        sizes: npt.NDArray[np.int64] = pc.binary_length(values).cast(pa.int64()).fill_null(0).to_numpy()
        return sizes
    return np.zeros(len(values), np.int64)


def _ids(column: pa.Array) -> Values:
    """Ids as an array of int64, or as Arrow's strings.

    Raises:
        InvalidRequestError: an id is null, or the type cannot be that of an id.
    """
    if column.null_count:
        raise InvalidRequestError(
            f"items[{column.is_valid().index(False).as_py()}].id", "is null: every candidate needs an id"
        )
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if _is_text(column.type):
        return column.cast(pa.string())
    try:
        if pa.types.is_integer(column.type):
            return to_numpy(column.cast(pa.int64()))
    except pa.ArrowInvalid:
        raise InvalidRequestError("items.id", "holds an integer of more than 64 bits, the sign included") from None
    raise InvalidRequestError("items.id", f"holds {column.type}: send integers or strings")


def write_stream(ranked: RankResult, summary: bytes) -> bytes:
    """The answer: columns id, score, scores (a struct with a field a task) and missing (names of features).

    Args:
        ranked: what is answered.
        summary: JSON of the rest.
    """
    scores = [pa.array(column) for column in ranked.scores.T]
    table = pa.table(
        {
            "id": to_id_array(ranked.ids),
            "score": ranked.total,
            "scores": pa.StructArray.from_arrays(scores, ranked.tasks),
            "missing": _missing(ranked.missing),
        },
        metadata={RESPONSE: summary},
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    stream: bytes = sink.getvalue().to_pybytes()
    return stream


def _missing(missing: Missing) -> pa.Array:
    """Names of what each candidate lacks, as lists of entries of a dictionary [candidates]."""
    mask = missing.mask()
    _, features = np.nonzero(mask)
    names = pa.DictionaryArray.from_arrays(features.astype(np.int32), pa.array(missing.features, pa.string()))
    return pa.ListArray.from_arrays(np.append(0, np.cumsum(mask.sum(1))).astype(np.int32), names)
