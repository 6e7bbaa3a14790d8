"""Tests of the load generator against a small server."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pipelines.bench.connection import BROKEN, ClientConnection, RequestBody, Response
from pipelines.bench.load import MIN_RESPONSES, MIN_RESPONSES_PER_CLIENT, LoadSpec, TimedResponse, run_load, summarize

STAGES = "Server-Timing: parse;dur=0.5, look-up;dur=1.25"


def test_requests_have_the_path_and_the_type_of_the_load() -> None:
    spec = LoadSpec(1, (RequestBody(b"{}", "text/x"),), 1.0, 0.0, path="/infer")
    (request,) = LoadSpec.from_json(spec.to_json()).requests()
    assert request.startswith(b"POST /infer HTTP/1.1\r\n")
    assert b"\r\nContent-Type: text/x\r\n" in request


class StubServer:
    """HTTP server that counts requests and sends the given responses in rotation, each in two pieces."""

    def __init__(self, *responses: str) -> None:
        self._responses = responses or (f"HTTP/1.1 200 OK\r\n{STAGES}\r\nContent-Length: 4\r\n\r\nbody",)
        self.bodies: Counter[bytes] = Counter()
        self.heads: list[str] = []
        self.open = self.max_open = self.requests = 0
        self.port = 0

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[StubServer]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.max_open = max(self.max_open, self.open)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
                self.heads.append(head)
                self.bodies[await reader.readexactly(length)] += 1
                response = self._responses[self.requests % len(self._responses)]
                self.requests += 1
                if not response:
                    break
                writer.write(response[:20].encode())
                await asyncio.sleep(0)
                writer.write(response[20:].encode())
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()


def load_spec(port: int, clients: int = 0, rate: float = 0.0, seconds: float = 0.2) -> LoadSpec:
    bodies = (RequestBody(b"one"), RequestBody(b"other", "application/x-other"))
    return LoadSpec(port, bodies, seconds, 0.05, clients, rate, seed=3)


def test_closed_loop_has_one_pending_request_per_client() -> None:
    async def run() -> None:
        async with StubServer().serving() as server:
            start = time.monotonic()
            summary = await run_load(load_spec(server.port, clients=3))
            seconds = time.monotonic() - start
            assert server.max_open == 3
            assert summary["sent"] == server.requests
            assert summary["requests"] >= MIN_RESPONSES
            assert summary["requests"] / seconds < summary["per_second"] < 1.001 * summary["requests"] / 0.2
            assert summary["stages"] == pytest.approx({"parse": 0.5, "look-up": 1.25})
            assert summary["failed"] == {}
            assert summary["bytes"] == 4
            assert set(server.bodies) == {b"one", b"other"}
            assert server.heads[0].startswith("POST /v1/rank HTTP/1.1\r\n")
            kinds = {head.split("Content-Type: ")[1].split("\r\n")[0] for head in server.heads}
            assert kinds == {"application/json", "application/x-other"}
            assert 0 < summary["p50"] <= summary["p99"]

    asyncio.run(run())


@pytest.mark.parametrize(("clients", "minimum"), [(2, MIN_RESPONSES), (40, 40 * MIN_RESPONSES_PER_CLIENT)])
def test_closed_loop_waits_for_the_minimum_number_of_responses(clients: int, minimum: int) -> None:
    async def run() -> None:
        async with StubServer().serving() as server:
            summary = await run_load(load_spec(server.port, clients=clients, seconds=0.0001))
            assert summary["requests"] >= minimum

    asyncio.run(run())


def test_open_loop_sends_at_the_times_of_a_poisson_process() -> None:
    async def run() -> None:
        async with StubServer().serving() as server:
            summary = await run_load(load_spec(server.port, rate=200.0))
            draws, due, expected = random.Random(3), 0.0, 0
            while (due := due + draws.expovariate(200.0)) < 0.25:
                expected += 1
            assert server.requests == summary["sent"] == expected

    asyncio.run(run())


def test_failed_requests_are_counted_but_not_timed() -> None:
    async def run() -> None:
        good = "HTTP/1.1 200 OK\r\ncontent-length:2\r\n\r\nok"
        full = "HTTP/1.1 429 Too Many\r\nContent-Length: 0\r\n\r\n"
        async with StubServer(good, full, "").serving() as server:
            summary = await run_load(load_spec(server.port, clients=1))
            assert set(summary["failed"]) == {"429", "0"}
            assert summary["requests"] + sum(summary["failed"].values()) <= summary["sent"]
            assert summary["bytes"] == 2

    asyncio.run(run())


def test_load_without_a_successful_response_raises() -> None:
    async def run() -> None:
        async with StubServer("HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n").serving() as server:
            with pytest.raises(ValueError, match=r"no request received status 200 .*500"):
                await run_load(load_spec(server.port, rate=100.0))

    asyncio.run(run())


def test_response_without_content_length_breaks_the_connection() -> None:
    async def run() -> None:
        async with StubServer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").serving() as server:
            connection = await ClientConnection.open("127.0.0.1", server.port)
            request = load_spec(server.port).requests()[0]
            assert await connection.send(request) == BROKEN
            assert await connection.send(request) == BROKEN

    asyncio.run(run())


def sample(due: float, seconds: float, status: int = 200) -> TimedResponse:
    return TimedResponse(due, seconds, Response(status, {}, 1))


@pytest.mark.parametrize("rate", [0.0, 50.0])
def test_load_opens_a_new_connection_after_a_response_that_closes_its_connection(rate: float) -> None:
    async def run() -> tuple[dict[str, Any], StubServer]:
        closing = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\nbody"
        async with StubServer(closing).serving() as server:
            spec = LoadSpec(server.port, (RequestBody(b"a"),), 0.2, 0.0, clients=0 if rate else 2, rate=rate)
            return await run_load(spec), server

    summary, server = asyncio.run(run())
    assert summary["failed"] == {}
    assert server.requests >= summary["sent"] > 1


def test_summarize_times_requests_due_in_the_window_of_an_open_loop_and_answered_in_that_of_a_closed_loop() -> None:
    samples = [sample(0.5, 0.1), sample(0.9, 0.3), sample(1.5, 0.2), sample(1.9, 5.0)]
    opened = summarize(samples, 1.0, 2.0, by_due=True)
    assert (opened["p50"], opened["p99"]) == pytest.approx(
        (200, 5000)
    )  # Includes the last request, whose response was late.
    closed = summarize(samples, 1.0, 2.0, by_due=False)
    assert (closed["p50"], closed["p99"]) == pytest.approx((200, 300))
    assert opened["per_second"] == closed["per_second"] == 2


def test_summarize_reports_latencies_of_rejections_separately() -> None:
    rejected = [sample(1.2, 0.1, 429), sample(1.3, 0.3, 429), sample(0.5, 9.0, 429)]
    summary = summarize([*rejected, sample(1.5, 0.2)], 1.0, 2.0, by_due=True)
    assert (summary["p99"], summary["failed"]) == (pytest.approx(200), {"429": 3})
    assert summary["failed_p50"] == {"429": pytest.approx(100)}
    assert summary["failed_p99"] == {"429": pytest.approx(300)}


def test_process_reads_a_load_specification_and_prints_the_summary() -> None:
    async def run() -> None:
        async with StubServer().serving() as server:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "pipelines.bench.load"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            output, _ = await process.communicate(load_spec(server.port, clients=2).to_json().encode())
            summary = json.loads(output)
            assert summary["sent"] == server.requests > 0
            assert summary["client_cpu"] > 0

    asyncio.run(run())
