"""JSON bodies: parsing, limits and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.http.decode import decode_message
from service.protocol.messages import RankOptions, RankRequest
from service.protocol.problems import Problem
from service.settings import Settings

SETTINGS = Settings(repository=Path("repository"))


def decoding_problem(body: bytes) -> Problem:
    with pytest.raises(Problem) as caught:
        decode_message(body, RankRequest, "body", SETTINGS)
    return caught.value


def test_decode_message_valid_request_is_equal_to_the_message() -> None:
    request = decode_message('{"items": [{"id": "ü"}, {"id": 1}], "top_n": 3}'.encode(), RankRequest, "body", SETTINGS)
    assert request == RankRequest.model_validate({"items": [{"id": "ü"}, {"id": 1}], "top_n": 3})


@pytest.mark.parametrize(
    ("body", "position"),
    [(b"{", 1), (b'{"items": [}', 11), (b'{"items": []', 12), (b"{'items': []}", 1), (b"\x00", 0), (b"{} {}", 3)],
)
def test_decode_message_invalid_json_is_400_with_its_position(body: bytes, position: int) -> None:
    problem = decoding_problem(body)
    assert problem.status == 400
    assert problem.detail.startswith("body: not valid JSON: ")
    assert problem.detail.endswith(f" at character {position}")


@pytest.mark.parametrize(
    ("body", "position"), [(b'{"items": "\xff"}', 11), (b"\xff\xfe{\x00}\x00", 0), ('{"id": "ü'.encode()[:-1], 8)]
)
def test_decode_message_invalid_utf8_is_400_with_the_position_of_the_byte(body: bytes, position: int) -> None:
    problem = decoding_problem(body)
    assert problem.status == 400
    assert problem.detail == f"body: not valid UTF-8 at byte {position}: encode the JSON as UTF-8"


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"items": ' + b"1" * 10_000 + b"}"])
def test_decode_message_unparsable_body_is_400(body: bytes) -> None:
    assert decoding_problem(body).status == 400
    assert decoding_problem(body).errors[0].field == "body"


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"3"])
def test_decode_message_other_than_an_object_is_422(body: bytes) -> None:
    assert decoding_problem(body).status == 422
    assert decoding_problem(body).errors[0].field == "body"


def test_decode_message_error_names_the_given_field() -> None:
    with pytest.raises(Problem) as caught:
        decode_message(b"{", RankOptions, "request", SETTINGS)
    assert caught.value.errors[0].field == "request"


@pytest.mark.parametrize("id_", [2**63, -(2**63) - 1, 2**70])
def test_rank_id_of_more_than_64_bits_is_422(client: TestClient, id_: int) -> None:
    for items in ([{"id": id_}], {"id": [id_]}):
        response = client.post("/v1/rank", json={"items": items})
        assert response.status_code == 422
        (error,) = response.json()["errors"]
        assert error["field"] in ("items[0].id", "items.id[0]")


@pytest.mark.parametrize("id_", [2**63 - 1, -(2**63)])
def test_rank_largest_ids_are_returned_unchanged(client: TestClient, id_: int) -> None:
    for layout, ids_of in (("rows", lambda items: [i["id"] for i in items]), ("columns", lambda items: items["id"])):
        response: Any = client.post("/v1/rank", json={"items": {"id": [id_]}, "layout": layout}).json()
        assert ids_of(response["items"]) == [id_]


@pytest.mark.parametrize("body", [r'{"items": [{"id": "\ud800"}]}', r'{"items": [], "context": {"hour": "\udfff"}}'])
def test_decode_message_half_of_a_surrogate_pair_is_400(body: str) -> None:
    """Python's reader, the fallback of the first one, accepts such text."""
    problem = decoding_problem(body.encode())
    assert problem.status == 400
    assert "surrogate" in problem.detail
