"""What was ranked → the bytes of an answer, from arrays, without a Python object a number."""

from __future__ import annotations

from itertools import chain, repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from service.api.arrow import write_stream
from service.api.formats import ARROW
from service.engine.missing import Missing
from service.engine.ranking import Ranked
from service.engine.values import Values, as_list

NUMPY = orjson.OPT_SERIALIZE_NUMPY


def write(ranked: Ranked, summary: dict[str, Any], form: str, *, columns: bool) -> bytes:
    """The answer.

    Args:
        ranked: what is answered.
        summary: the rest of it, as ``RankSummary`` describes it.
        form: one of ``formats.FORMATS``.
        columns: whether JSON's items lie in columns, not in rows.
    """
    if form == ARROW:
        return write_stream(ranked, orjson.dumps(summary))
    if columns:
        return orjson.dumps(summary | {"items": _columns(ranked)}, option=NUMPY)
    return orjson.dumps(summary)[:-1] + b',"items":' + _rows(ranked) + b"}"


def _columns(ranked: Ranked) -> dict[str, Any]:
    """As ``RankedColumns`` describes it."""
    scores = np.ascontiguousarray(ranked.scores.T)
    return {
        "id": ranked.ids if isinstance(ranked.ids, np.ndarray) else as_list(ranked.ids),
        "score": ranked.total,
        "scores": dict(zip(ranked.tasks, scores, strict=True)),
        "missing": ranked.missing.positions(),
    }


def _rows(ranked: Ranked) -> bytes:
    """A list of ``RankedItem``: each column's cells as text, and between them what stands between them in every row."""
    count, scores = len(ranked.ids), ranked.scores.T
    if not count:
        return b"[]"
    before, last = _cells(scores[:-1].reshape(-1), b","), _cells(scores[-1], b"}")
    cells = [*(before[start : start + count] for start in range(0, len(before), count)), last]
    pieces: list[Any] = [b'{"id":', _ids(ranked.ids), b'"score":', _cells(ranked.total, b",")]
    for name, column, opening in zip(ranked.tasks, cells, chain([b'"scores":{'], repeat(b"")), strict=False):
        pieces += [opening + orjson.dumps(name) + b":", column]
    rows = pc.binary_join_element_wise(*pieces, b',"missing":', _missing(ranked.missing), b"")
    _, _, text = rows.buffers()
    return b"".join((b"[", memoryview(text)[:-1], b"]"))  # without the last comma


def _cells(values: npt.NDArray[Any], mark: bytes) -> pa.Array:
    """Each number as text, in as many digits as its type has, and a mark after it."""
    text = orjson.dumps(np.ascontiguousarray(values), option=NUMPY)[1:-1] + b","
    if mark != b",":
        text = text.replace(b",", mark)
    offsets = np.zeros(len(values) + 1, np.int32)
    offsets[1:] = np.flatnonzero(np.frombuffer(text, np.uint8) == ord(mark))
    offsets[1:] += 1
    return pa.BinaryArray.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(text)])


def _ids(ids: Values) -> pa.Array:
    """Each id as JSON, and a comma after it; one by one only if integers and text are mixed."""
    if isinstance(ids, np.ndarray):
        return _cells(ids, b",")
    ids = as_list(ids)
    if set(map(type, ids)) == {str}:
        text = orjson.dumps(ids)[2:-2].split(b'","')  # inside a text " is escaped
        return pa.array([b'"%b",' % each for each in text], pa.binary())
    return pa.array([orjson.dumps(each) + b"," for each in ids], pa.binary())


def _missing(missing: Missing) -> pa.Array | bytes:
    """Of each candidate a list of names, and the end of its row; as one text if they lack the same."""
    names, which = missing.patterns()
    ends = [orjson.dumps(each) + b"}," for each in names]
    return ends[0] if len(ends) == 1 else pa.array(ends, pa.binary()).take(pa.array(which))
