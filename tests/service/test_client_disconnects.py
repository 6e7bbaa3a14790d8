"""A client that disconnects while its request waits, on a server with sockets."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from service.engine import engine
from tests.support.http_client import post_json
from tests.support.ports import HOST
from tests.support.server_thread import BlockedScorer, server_thread, wait_for_metric
from tests.support.waiting import TIMEOUT_SECONDS


@pytest.mark.parametrize("pipelined", [1, 2])
def test_request_of_a_disconnected_client_is_not_scored(
    repository: Path, request_body: dict[str, Any], monkeypatch: pytest.MonkeyPatch, pipelined: int
) -> None:
    """With two pipelined requests, the second one waits for the first."""
    scorer = BlockedScorer()
    monkeypatch.setattr(engine, "score_batch", scorer)
    with server_thread(repository) as port:
        url = f"http://{HOST}:{port}"
        responses: list[Any] = []
        other_client = threading.Thread(target=lambda: responses.append(post_json(f"{url}/v1/rank", request_body)))
        other_client.start()
        assert scorer.started.wait(TIMEOUT_SECONDS)
        body = json.dumps(request_body | {"items": [{"id": "v1"}]}).encode()
        head = f"POST /v1/rank HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        with socket.create_connection((HOST, port)) as connection:
            connection.sendall((head.encode() + b"\r\n" + body) * pipelined)
            wait_for_metric(port, "ranker_requests_in_flight", 2)
        wait_for_metric(port, "ranker_requests_total,model=feed,status=499", 1)
        scorer.release.set()
        other_client.join()
    assert len(responses[0]["items"]) == len(request_body["items"])
    assert scorer.rows == [len(request_body["items"])]
