"""The load generator, a process of its own: ``python -m pipelines.bench.load`` with a ``Load`` as JSON on stdin.

Closed loop: so many clients, each of which sends its next request when it has its answer. Open loop: requests arrive
by a Poisson process whether or not earlier ones were answered, and their time counts from when they were due, so that
a server which falls behind cannot make its clients ask less (coordinated omission).
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import selectors
import sys
import time
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from typing import Any, Self

from pipelines.bench.connection import Answer, Body, Connection
from pipelines.bench.turns import percentile

LEAST, LEAST_EACH = 20, 2
"""Answers that a closed loop waits for, however long they take: in all, and times its clients. A service that works on
all requests at once answers none for long, and then all of them."""
PATIENCE = 60.0
"""Seconds after which it gives up nevertheless."""
MOST_CONNECTIONS = 500
"""Of an open loop; select() takes 1,024."""
HOST, PATH = "127.0.0.1", "/v1/rank"
"""Where all servers are asked."""
OK = 200


@dataclass(frozen=True)
class Load:
    """What is sent where.

    Attributes:
        port: on this machine.
        bodies: sent by turns.
        seconds: how long is measured; a closed loop goes on until it has enough answers.
        warm: seconds before that.
        clients: of a closed loop; 0 for an open one.
        rate: requests a second of an open loop.
        seed: of the arrivals.
    """

    port: int
    bodies: tuple[Body, ...]
    seconds: float
    warm: float
    clients: int = 0
    rate: float = 0.0
    seed: int = 0

    def to_json(self) -> str:
        """As the process reads it."""
        bodies = [asdict(body) | {"data": base64.b64encode(body.data).decode()} for body in self.bodies]
        return json.dumps(asdict(self) | {"bodies": bodies})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Reads what ``to_json`` wrote."""
        found = json.loads(text)
        bodies = (Body(**body | {"data": base64.b64decode(body["data"])}) for body in found["bodies"])
        return cls(**found | {"bodies": tuple(bodies)})

    def requests(self) -> list[bytes]:
        """Heads and bodies."""
        head = "POST {0} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {1}\r\nAccept: {1}\r\nContent-Length: {2}\r\n\r\n"
        return [head.format(PATH, body.content_type, len(body.data)).encode() + body.data for body in self.bodies]


@dataclass(frozen=True)
class Asked:
    """One request: when it was due, how many seconds later the answer was there, and the answer."""

    due: float
    seconds: float
    answer: Answer


async def drive(load: Load) -> dict[str, Any]:
    """Sends the load and sums up the answers, see ``summary``."""
    start = time.perf_counter()
    cpu = time.process_time()
    asked, end = await (_closed(load, start) if load.clients else _open(load, start))
    busy = (time.process_time() - cpu) / (time.perf_counter() - start)
    return summary(asked, start + load.warm, end, by_due=not load.clients) | {"client_cpu": busy}


def summary(asked: list[Asked], begin: float, end: float, *, by_due: bool) -> dict[str, Any]:
    """What is known of the requests of a stretch of time.

    Args:
        asked: all requests.
        begin: of the stretch, by ``time.perf_counter()``.
        end: of the stretch.
        by_due: times are of the requests that were due in it, else of those that were answered in it.

    Returns:
        ``per_second``: answers with status 200; ``p50``, ``p99`` (milliseconds) and ``stages`` (stage → mean
        milliseconds) of those; ``failed``: other status → count; ``failed_p50``, ``failed_p99``: other status →
        milliseconds, of an open loop; ``bytes``: mean size of an answer's body; ``requests``: how many the times are
        of; ``sent``: how many were asked in all.

    Raises:
        ValueError: nothing was answered.
    """
    answered = [one for one in asked if one.answer.status == OK and begin <= one.due + one.seconds <= end]
    counted = [one for one in asked if begin <= one.due < end] if by_due else answered
    good = [one for one in counted if one.answer.status == OK]
    failed = Counter(one.answer.status for one in asked if one.answer.status != OK)
    refused: dict[int, list[float]] = defaultdict(list)
    for one in counted:
        if one.answer.status != OK:
            refused[one.answer.status].append(one.seconds * 1000)
    if not good:
        raise ValueError(f"no request was answered (statuses: {dict(failed)})")
    milliseconds = [one.seconds * 1000 for one in good]
    stages: dict[str, float] = defaultdict(float)
    for one in good:
        for stage, spent in one.answer.stages.items():
            stages[stage] += spent / len(good)
    return {
        "per_second": len(answered) / (end - begin),
        "p50": percentile(milliseconds, 0.5),
        "p99": percentile(milliseconds, 0.99),
        "stages": dict(stages),
        "failed": {str(status): count for status, count in failed.items()},
        "failed_p50": {str(status): percentile(times, 0.5) for status, times in refused.items()},
        "failed_p99": {str(status): percentile(times, 0.99) for status, times in refused.items()},
        "bytes": sum(one.answer.size for one in good) / len(good),
        "requests": len(good),
        "sent": len(asked),
    }


async def _closed(load: Load, start: float) -> tuple[list[Asked], float]:
    """The requests and when the measurement ended."""
    requests: list[bytes] = load.requests()
    asked: list[Asked] = []
    begin = start + load.warm
    least, good = max(LEAST, LEAST_EACH * load.clients), 0
    ended: float | None = None

    async def client(number: int) -> None:
        nonlocal good, ended
        connection = await Connection.open(HOST, load.port)
        while ended is None:
            due = time.perf_counter()
            answer = await connection.ask(requests[number % len(requests)])
            now = time.perf_counter()
            if ended is None and now >= begin + load.seconds:
                if good >= least:
                    ended = begin + load.seconds
                elif good + 1 == least or now > begin + PATIENCE:
                    ended = now
            asked.append(Asked(due, now - due, answer))
            good += answer.status == OK and now >= begin
            number += 1
            if not answer.status:
                connection = await Connection.open(HOST, load.port)
        connection.close()

    await asyncio.gather(*(client(number) for number in range(load.clients)))
    assert ended is not None
    return asked, ended


async def _open(load: Load, start: float) -> tuple[list[Asked], float]:
    """The requests and when the measurement ended."""
    requests: list[bytes] = load.requests()
    asked: list[Asked] = []
    arrivals, end = random.Random(load.seed), start + load.warm + load.seconds
    idle: list[Connection] = []
    free = asyncio.Semaphore(MOST_CONNECTIONS)

    async def one(number: int, due: float) -> None:
        async with free:
            connection = idle.pop() if idle else await Connection.open(HOST, load.port)
            answer = await connection.ask(requests[number % len(requests)])
            asked.append(Asked(due, time.perf_counter() - due, answer))
            if answer.status:
                idle.append(connection)

    waiting: set[asyncio.Task[None]] = set()
    due, number = start + arrivals.expovariate(load.rate), 0
    while due < end:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        task = asyncio.create_task(one(number, due))
        waiting.add(task)
        task.add_done_callback(waiting.discard)
        due, number = due + arrivals.expovariate(load.rate), number + 1
    await asyncio.gather(*waiting)
    for connection in idle:
        connection.close()
    return asked, end


def main() -> None:
    """Reads a load from stdin, prints what came of it."""
    load = Load.from_json(sys.stdin.read())
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())  # epoll's timer counts in milliseconds
    try:
        print(json.dumps(loop.run_until_complete(drive(load))))
    finally:
        loop.close()


if __name__ == "__main__":
    main()
