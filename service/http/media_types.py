"""Content negotiation: the format of a request body and of the response."""

from __future__ import annotations

from functools import lru_cache

from service.protocol.problems import Problem

JSON = "application/json"
ARROW = "application/vnd.apache.arrow.stream"
FORMATS = (JSON, ARROW)
CACHE_SIZE = 64
"""Number of header values whose result is cached; clients send few different ones."""


@lru_cache(CACHE_SIZE)
def request_format(content_type: str) -> str:
    """Return the format of a request body.

    Raises:
        Problem: 415 if the format is not supported.
    """
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type not in FORMATS:
        raise Problem(415, f"Content-Type is {content_type or 'missing'!r}: send {' or '.join(FORMATS)}")
    return media_type


@lru_cache(CACHE_SIZE)
def response_format(accept: str) -> str:
    """Return the format with the highest quality; among equals the one that is named most closely, else JSON.

    Args:
        accept: Accept header (RFC 9110, section 12.5.1); empty: any format.

    Raises:
        Problem: 406 if no format is acceptable.
    """
    preferences = {media_type: _preference(media_type, accept or "*/*") for media_type in FORMATS}
    best = max(FORMATS, key=preferences.__getitem__)
    if preferences[best][0] <= 0.0:
        raise Problem(406, f"Accept is {accept!r}: the answer can be {' or '.join(FORMATS)}")
    return best


def _preference(media_type: str, accept: str) -> tuple[float, int]:
    """Return the quality (0 to 1) and specificity of the most specific range that matches a media type."""
    specificity = {media_type: 2, f"{media_type.partition('/')[0]}/*": 1, "*/*": 0}
    preference = (0.0, -1)
    for part in accept.split(","):
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        if specificity.get(name, -1) > preference[1]:
            preference = _quality(parameters), specificity[name]
    return preference


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0
