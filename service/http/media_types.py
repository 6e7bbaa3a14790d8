"""Media types: which one a body has, which one an answer is to have."""

from __future__ import annotations

from functools import lru_cache

from service.protocol.problems import Problem

JSON = "application/json"
ARROW = "application/vnd.apache.arrow.stream"
FORMATS = (JSON, ARROW)
REMEMBERED = 64
"""Headers that clients send; most send the same ones."""


@lru_cache(REMEMBERED)
def body_format(content_type: str) -> str:
    """The format of a body.

    Raises:
        Problem: 415 for another than those that are read.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in FORMATS:
        raise Problem(415, f"Content-Type is {content_type or 'missing'!r}: send {' or '.join(FORMATS)}")
    return kind


@lru_cache(REMEMBERED)
def answer_format(accept: str) -> str:
    """The format that a client likes best; of those that it likes alike, the one it names, else JSON.

    Args:
        accept: the header as RFC 9110 has it; empty: anything will do.

    Raises:
        Problem: 406 if none of ours will do.
    """
    likings = {kind: _liking(kind, accept or "*/*") for kind in FORMATS}
    best = max(FORMATS, key=likings.__getitem__)
    if likings[best][0] <= 0.0:
        raise Problem(406, f"Accept is {accept!r}: the answer can be {' or '.join(FORMATS)}")
    return best


def _liking(kind: str, accept: str) -> tuple[float, int]:
    """How much a header likes a media type, 0 to 1, and how closely it names it: its closest range counts."""
    ranges = {kind: 2, f"{kind.partition('/')[0]}/*": 1, "*/*": 0}
    found = (0.0, -1)
    for part in accept.split(","):
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        if ranges.get(name, -1) > found[1]:
            found = _quality(parameters), ranges[name]
    return found


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0
