"""What was ranked → the bytes of an answer, from arrays: in columns and Arrow without a Python object a number."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from service.engine.missing import Missing
from service.engine.response import RankResult
from service.engine.values import Values, to_list
from service.http.arrow import write_stream
from service.http.media_types import ARROW

NUMPY = orjson.OPT_SERIALIZE_NUMPY


def write(ranked: RankResult, summary: dict[str, Any], form: str, *, columns: bool) -> bytes:
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


def _columns(ranked: RankResult) -> dict[str, Any]:
    """As ``RankedColumns`` describes it."""
    scores = np.ascontiguousarray(ranked.scores.T)
    return {
        "id": ranked.ids if isinstance(ranked.ids, np.ndarray) else to_list(ranked.ids),
        "score": ranked.total,
        "scores": dict(zip(ranked.tasks, scores, strict=True)),
        "missing": ranked.missing.positions(),
    }


def _rows(ranked: RankResult) -> bytes:
    """A list of ``RankedItem``: cells of each column as text, and between them what stands between them in every row.

    Takes half as long as dicts, which would be made only to be written. Arrow's kernels need no object a cell, but take
    0.1 ms more a call, and less than this only from 500 candidates on.
    """
    count = len(ranked.ids)
    quote, ids = _text(ranked.ids)
    columns = [(b'{"id":' + quote, ids), (quote + b',"score":', _numbers(ranked.total))]
    before, width = b',"scores":{', len(ranked.tasks)
    scores = _numbers(np.ascontiguousarray(ranked.scores).reshape(-1))
    for place, task in enumerate(ranked.tasks):
        columns.append((before + orjson.dumps(task) + b":", scores[place::width]))
        before = b","
    columns.append((b'},"missing":', _missing(ranked.missing)))
    pieces = [piece for name, _ in columns for piece in (name, b"")] + [b"},"]
    width = len(pieces)
    pieces *= count
    for place, (_, cells) in enumerate(columns):
        pieces[2 * place + 1 :: width] = cells
    return b"[" + b"".join(pieces)[:-1] + b"]"


def _numbers(values: npt.NDArray[Any]) -> list[bytes]:
    """Each number as text, in as many digits as its type has."""
    return orjson.dumps(values, option=NUMPY)[1:-1].split(b",") if len(values) else []


def _text(ids: Values) -> tuple[bytes, list[bytes]]:
    """Each id as JSON, and what stands before and after each; one by one only if integers and text are mixed."""
    if isinstance(ids, np.ndarray):
        return b"", _numbers(ids)
    ids = to_list(ids)
    kinds = set(map(type, ids))
    if kinds == {int}:
        return b"", orjson.dumps(ids)[1:-1].split(b",")
    if kinds == {str}:
        return b'"', orjson.dumps(ids)[2:-2].split(b'","')  # inside a text " is escaped
    return b"", list(map(orjson.dumps, ids))


def _missing(missing: Missing) -> list[bytes]:
    """Of each candidate a list of names."""
    names, which = missing.patterns()
    text = list(map(orjson.dumps, names))
    return [text[i] for i in which]
