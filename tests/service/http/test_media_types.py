"""Content-Type and Accept."""

from __future__ import annotations

import pytest

from service.http.media_types import ARROW, FORMATS, JSON, request_format, response_format
from service.protocol.problems import Problem


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", JSON),
        ("*/*", JSON),
        ("application/*", JSON),
        (JSON, JSON),
        (ARROW, ARROW),
        (ARROW.upper(), ARROW),
        (f"{ARROW}, {JSON}", JSON),
        (f"{JSON};q=0.5, {ARROW}", ARROW),
        (f"{JSON}, {ARROW};q=0.5", JSON),
        (f"{ARROW}, */*", ARROW),  # who names it wants it
        (f"{ARROW};q=0.9, */*", JSON),
        (f"{JSON};q=0, */*", ARROW),
        ("text/html, application/xhtml+xml, */*;q=0.8", JSON),
        (f"text/html, {ARROW} ; q=0.1", ARROW),
        (f"{JSON};charset=utf-8", JSON),
    ],
)
def test_the_answer_has_the_format_that_the_client_likes_best(accept: str, expected: str) -> None:
    assert response_format(accept) == expected


@pytest.mark.parametrize("accept", ["text/html", "text/*", f"{JSON};q=0", "*/*;q=0", f"{JSON};q=much", "nonsense", ","])
def test_an_accept_that_nothing_satisfies_is_406_and_says_what_there_is(accept: str) -> None:
    with pytest.raises(Problem) as caught:
        response_format(accept)
    assert caught.value.status == 406
    assert all(kind in caught.value.detail for kind in FORMATS)


def test_bodies_have_one_of_the_formats() -> None:
    assert request_format("application/json; charset=utf-8") == JSON
    assert request_format(ARROW.upper()) == ARROW


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/json+x", "multipart/form-data; boundary=application/json"]
)
def test_another_format_is_415_and_says_which_there_are(kind: str) -> None:
    with pytest.raises(Problem) as caught:
        request_format(kind)
    assert caught.value.status == 415
    assert all(kind in caught.value.detail for kind in FORMATS)
