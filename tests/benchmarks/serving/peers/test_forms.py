"""Tests of the forms of requests and responses."""

from __future__ import annotations

import json

import pytest

from benchmarks.serving.peers.forms import LIST, PLAIN, TENSOR, Form

REQUEST = b'{"user": {"id": "\xc3\xa9"}, "items": {"id": [1]}}'
RESPONSE = {"items": [{"id": 1}]}
TEXT = json.dumps(RESPONSE)


@pytest.mark.parametrize(
    ("form", "request_in", "response"),
    [
        (PLAIN, lambda body: body, TEXT),
        (LIST, lambda body: body["requests"][0], f"[{TEXT}]"),
        (
            TENSOR,
            lambda body: json.loads(body["inputs"][0]["data"][0]),
            json.dumps({"outputs": [{"name": "response", "data": [TEXT]}]}),
        ),
    ],
    ids=["plain", "list", "tensor"],
)
def test_form_wraps_the_request_and_unwraps_the_response(form: Form, request_in: object, response: str) -> None:
    assert callable(request_in)
    assert request_in(json.loads(form.wrap(REQUEST))) == json.loads(REQUEST)
    assert form.unwrap(response.encode()) == RESPONSE
