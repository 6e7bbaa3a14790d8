"""Text of a request that is too long to be an id or a name."""

from __future__ import annotations

from typing import Any

ESCAPED_QUOTE = b'\\"'


def may_hold_longer(body: bytes, most: int) -> bool:
    """Whether JSON may hold text of more than so many characters; False is certain, and found out in microseconds.

    From a quote to the last one within ``most`` bytes is one step, so that most of a body is not looked at. Only where
    there is none within them can there be longer text, if the quotes before are odd in number.

    Args:
        body: JSON in UTF-8.
        most: characters.
    """
    if b"\\" in body and ESCAPED_QUOTE in body:  # one byte is found much sooner than two
        return True  # quotes tell nothing then
    place = counted = quotes = 0
    while len(body) - place > most:
        last = body.rfind(b'"', place, place + most + 1)
        if last >= 0:
            place = last + 1
            continue
        quotes += body.count(b'"', counted, place)
        if quotes % 2:
            return True
        counted = place
        place = body.find(b'"', place + most) + 1
        if not place:
            return False
    return False


def longer(document: Any, most: int) -> str | None:
    """Where a document has text of more than so many characters, names of fields included; None if nowhere.

    Args:
        document: an object or list as JSON can hold it.
        most: characters.
    """
    waiting: list[_Place] = [(document, "", None)]
    while waiting:
        place = waiting.pop()
        value = place[0]
        if isinstance(value, str) and len(value) > most:
            return _path(place)
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, each in inner:
            if isinstance(each, list | dict) or (isinstance(each, str) and len(each) > most):
                waiting.append((each, key, place))
            if isinstance(key, str) and len(key) > most:
                return _path((each, key, place))
    return None


_Place = tuple[Any, str | int, Any]
"""A value, its name or number in what holds it, and the place of that."""


def _path(place: _Place) -> str:
    """``items[3].id``; a name that is too long itself is cut."""
    _, key, parent = place
    if parent is None:
        return ""
    before = _path(parent)
    if isinstance(key, int):
        return f"{before}[{key}]"
    return f"{before}.{key:.40}" if before else f"{key:.40}"
