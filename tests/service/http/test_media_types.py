"""Content negotiation by Content-Type and Accept."""

from __future__ import annotations

import pytest

from service.http.media_types import ARROW, FORMATS, JSON, request_format, response_format
from service.protocol.problems import Problem

JSON_PREFERRED = [
    *("", "*/*", "application/*", JSON, f"{ARROW}, {JSON}", f"{JSON}, {ARROW};q=0.5", f"{ARROW};q=0.9, */*"),
    *("text/html, application/xhtml+xml, */*;q=0.8", f"{JSON};charset=utf-8"),
]
ARROW_PREFERRED = [
    *(ARROW, ARROW.upper(), f"{JSON};q=0.5, {ARROW}", f"{JSON};q=0, */*", f"text/html, {ARROW} ; q=0.1"),
    f"{ARROW}, */*",  # equal quality: the more specific range wins
]


@pytest.mark.parametrize(
    ("accept", "expected"), [*((a, JSON) for a in JSON_PREFERRED), *((a, ARROW) for a in ARROW_PREFERRED)]
)
def test_response_format_is_the_preferred_one(accept: str, expected: str) -> None:
    assert response_format(accept) == expected


@pytest.mark.parametrize("accept", ["text/html", "text/*", f"{JSON};q=0", "*/*;q=0", f"{JSON};q=much", "nonsense", ","])
def test_response_format_without_an_acceptable_one_is_406_and_lists_the_formats(accept: str) -> None:
    with pytest.raises(Problem) as caught:
        response_format(accept)
    assert caught.value.status == 406
    assert all(media_type in caught.value.detail for media_type in FORMATS)


def test_request_format_ignores_parameters_and_case() -> None:
    assert request_format("application/json; charset=utf-8") == JSON
    assert request_format(ARROW.upper()) == ARROW


@pytest.mark.parametrize(
    "content_type", ["", "text/plain", "application/json+x", "multipart/form-data; boundary=application/json"]
)
def test_request_format_unsupported_is_415_and_lists_the_formats(content_type: str) -> None:
    with pytest.raises(Problem) as caught:
        request_format(content_type)
    assert caught.value.status == 415
    assert all(media_type in caught.value.detail for media_type in FORMATS)
