"""The load generator against a tiny server."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pipelines.bench.connection import BROKEN, Answer, Body, Connection
from pipelines.bench.load import LEAST, LEAST_EACH, Asked, Load, drive, summary

STAGES = "Server-Timing: parse;dur=0.5, look-up;dur=1.25"


class Tiny:
    """An HTTP server that counts what it is sent and answers what it is told, in two pieces."""

    def __init__(self, *answers: str) -> None:
        self._answers = answers or (f"HTTP/1.1 200 OK\r\n{STAGES}\r\nContent-Length: 4\r\n\r\nbody",)
        self.bodies: Counter[bytes] = Counter()
        self.heads: list[str] = []
        self.open = self.most = self.asked = 0
        self.port = 0

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Tiny]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
                self.heads.append(head)
                self.bodies[await reader.readexactly(length)] += 1
                answer = self._answers[self.asked % len(self._answers)]
                self.asked += 1
                if not answer:
                    break
                writer.write(answer[:20].encode())
                await asyncio.sleep(0)
                writer.write(answer[20:].encode())
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()


def load(port: int, clients: int = 0, rate: float = 0.0, seconds: float = 0.2) -> Load:
    bodies = (Body(b"one"), Body(b"other", "application/x-other"))
    return Load(port, bodies, seconds, 0.05, clients, rate, seed=3)


def test_a_closed_loop_has_one_request_of_each_client_at_a_time() -> None:
    async def run() -> None:
        async with Tiny().serving() as server:
            found = await drive(load(server.port, clients=3))
            assert server.most == 3
            assert found["sent"] == server.asked
            assert found["requests"] >= LEAST
            assert found["per_second"] == pytest.approx(found["requests"] / 0.2)
            assert found["stages"] == pytest.approx({"parse": 0.5, "look-up": 1.25})
            assert found["failed"] == {}
            assert found["bytes"] == 4
            assert set(server.bodies) == {b"one", b"other"}
            assert server.heads[0].startswith("POST /v1/rank HTTP/1.1\r\n")
            kinds = {head.split("Content-Type: ")[1].split("\r\n")[0] for head in server.heads}
            assert kinds == {"application/json", "application/x-other"}
            assert 0 < found["p50"] <= found["p99"]

    asyncio.run(run())


@pytest.mark.parametrize(("clients", "least"), [(2, LEAST), (40, 40 * LEAST_EACH)])
def test_a_closed_loop_waits_for_enough_answers(clients: int, least: int) -> None:
    async def run() -> None:
        async with Tiny().serving() as server:
            found = await drive(load(server.port, clients=clients, seconds=0.0001))
            assert found["requests"] >= least

    asyncio.run(run())


def test_an_open_loop_sends_at_the_times_of_a_poisson_process() -> None:
    async def run() -> None:
        async with Tiny().serving() as server:
            found = await drive(load(server.port, rate=200.0))
            draws, due, expected = random.Random(3), 0.0, 0
            while (due := due + draws.expovariate(200.0)) < 0.25:
                expected += 1
            assert server.asked == found["sent"] == expected

    asyncio.run(run())


def test_what_fails_is_counted_and_not_timed() -> None:
    async def run() -> None:
        good = "HTTP/1.1 200 OK\r\ncontent-length:2\r\n\r\nok"
        full = "HTTP/1.1 429 Too Many\r\nContent-Length: 0\r\n\r\n"
        async with Tiny(good, full, "").serving() as server:
            found = await drive(load(server.port, clients=1))
            assert set(found["failed"]) == {"429", "0"}
            assert found["requests"] + sum(found["failed"].values()) <= found["sent"]
            assert found["bytes"] == 2

    asyncio.run(run())


def test_nothing_answered_is_an_error() -> None:
    async def run() -> None:
        async with Tiny("HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n").serving() as server:
            with pytest.raises(ValueError, match=r"no request was answered .*500"):
                await drive(load(server.port, rate=100.0))

    asyncio.run(run())


def test_an_answer_without_a_length_breaks_the_connection() -> None:
    async def run() -> None:
        async with Tiny("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").serving() as server:
            connection = await Connection.open("127.0.0.1", server.port)
            request = load(server.port).requests()[0]
            assert await connection.ask(request) == BROKEN
            assert await connection.ask(request) == BROKEN

    asyncio.run(run())


def asked(due: float, seconds: float, status: int = 200) -> Asked:
    return Asked(due, seconds, Answer(status, {}, 1))


def test_an_open_loop_times_requests_that_were_due_a_closed_one_those_that_were_answered() -> None:
    requests = [asked(0.5, 0.1), asked(0.9, 0.3), asked(1.5, 0.2), asked(1.9, 5.0)]
    opened = summary(requests, 1.0, 2.0, by_due=True)
    assert (opened["p50"], opened["p99"]) == pytest.approx((200, 5000))  # the last one, although it came late
    closed = summary(requests, 1.0, 2.0, by_due=False)
    assert (closed["p50"], closed["p99"]) == pytest.approx((200, 300))
    assert opened["per_second"] == closed["per_second"] == 2


def test_an_open_loop_times_refusals_apart() -> None:
    refused = [asked(1.2, 0.1, 429), asked(1.3, 0.3, 429), asked(0.5, 9.0, 429)]
    found = summary([*refused, asked(1.5, 0.2)], 1.0, 2.0, by_due=True)
    assert (found["p99"], found["failed"]) == (pytest.approx(200), {"429": 3})
    assert found["failed_p50"] == {"429": pytest.approx(100)}
    assert found["failed_p99"] == {"429": pytest.approx(300)}


def test_it_is_a_process_that_reads_a_load_and_prints_what_came_of_it() -> None:
    async def run() -> None:
        async with Tiny().serving() as server:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "pipelines.bench.load"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            written, _ = await process.communicate(load(server.port, clients=2).to_json().encode())
            found = json.loads(written)
            assert found["sent"] == server.asked > 0
            assert found["client_cpu"] > 0

    asyncio.run(run())
