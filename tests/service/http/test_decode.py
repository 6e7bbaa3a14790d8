"""JSON bodies as bytes."""

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


def refused(body: bytes) -> Problem:
    with pytest.raises(Problem) as caught:
        decode_message(body, RankRequest, "body", SETTINGS)
    return caught.value


def test_a_request() -> None:
    request = decode_message('{"items": [{"id": "ü"}, {"id": 1}], "top_n": 3}'.encode(), RankRequest, "body", SETTINGS)
    assert request == RankRequest.model_validate({"items": [{"id": "ü"}, {"id": 1}], "top_n": 3})


@pytest.mark.parametrize(
    ("body", "position"),
    [(b"{", 1), (b'{"items": [}', 11), (b'{"items": []', 12), (b"{'items': []}", 1), (b"\x00", 0), (b"{} {}", 3)],
)
def test_broken_json_is_400_and_says_where(body: bytes, position: int) -> None:
    problem = refused(body)
    assert problem.status == 400
    assert problem.detail.startswith("body: not valid JSON: ")
    assert problem.detail.endswith(f" at character {position}")


@pytest.mark.parametrize("body", [b'{"items": "\xff"}', b"[" * 100_000, b'{"items": ' + b"1" * 10_000 + b"}"])
def test_what_no_reader_takes_is_400(body: bytes) -> None:
    assert refused(body).status == 400
    assert refused(body).errors[0].field == "body"


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"3"])
def test_what_is_no_object_is_422(body: bytes) -> None:
    assert refused(body).status == 422
    assert refused(body).errors[0].field == "body"


def test_the_field_of_another_message_is_named() -> None:
    with pytest.raises(Problem) as caught:
        decode_message(b"{", RankOptions, "request", SETTINGS)
    assert caught.value.errors[0].field == "request"


@pytest.mark.parametrize("id_", [2**63, -(2**63) - 1, 2**70])
def test_ids_have_64_bits(client: TestClient, id_: int) -> None:
    for items in ([{"id": id_}], {"id": [id_]}):
        response = client.post("/v1/rank", json={"items": items})
        assert response.status_code == 422
        (error,) = response.json()["errors"]
        assert error["field"] in ("items[0].id", "items.id[0]")


@pytest.mark.parametrize("id_", [2**63 - 1, -(2**63)])
def test_the_largest_ids_come_back(client: TestClient, id_: int) -> None:
    for layout, ids in (("rows", lambda items: [i["id"] for i in items]), ("columns", lambda items: items["id"])):
        answer: Any = client.post("/v1/rank", json={"items": {"id": [id_]}, "layout": layout}).json()
        assert ids(answer["items"]) == [id_]


@pytest.mark.parametrize("value", ["1" + "0" * 400, "NaN", "-Infinity"])
def test_a_number_beyond_all_floats_is_named(client: TestClient, value: str) -> None:
    body = f'{{"items": {{"id": ["v1", "v2"], "features": {{"price": [null, {value}]}}}}}}'
    response = client.post("/v1/rank", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 422
    assert response.json()["errors"][0]["field"] == "items[1].features.price"


def test_an_unknown_layout_is_422(client: TestClient) -> None:
    response = client.post("/v1/rank", json={"items": [], "layout": "diagonal"})
    assert (response.status_code, response.json()["errors"][0]["field"]) == (422, "layout")


@pytest.mark.parametrize("half", [r'{"items": [{"id": "\ud800"}]}', r'{"items": [], "context": {"hour": "\udfff"}}'])
def test_half_a_character_is_400(half: str) -> None:
    """Python's reader, which is asked where the first one gives up, takes halves of surrogate pairs."""
    assert refused(half.encode()).status == 400
