"""Load generator, run as its own process: ``python -m pipelines.bench.load`` with a ``LoadSpec`` as JSON on stdin.

Closed loop: each of a number of clients sends its next request when it has received a response. Open loop: requests
arrive by a Poisson process, independent of earlier responses. Their latency counts from the time at which they were
due, so that a slow server does not reduce the load that it gets (coordinated omission).
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

import numpy as np

from pipelines.bench.connection import ClientConnection, RequestBody, Response

MIN_RESPONSES = 20
"""Minimum number of responses with status 200 in a closed loop, however long they take."""
MIN_RESPONSES_PER_CLIENT = 2
"""The same per client. A service that processes all requests at once sends their responses together."""
TIMEOUT_SECONDS = 60.0
"""Seconds after which a closed loop ends even with fewer responses."""
MAX_CONNECTIONS = 500
"""Maximum number of connections of an open loop; select() supports 1,024 file descriptors."""
HOST, PATH = "127.0.0.1", "/v1/rank"
"""Address of every measured server, and path of the service."""
OK = 200


@dataclass(frozen=True)
class LoadSpec:
    """Load to generate.

    Attributes:
        port: port of the server on this machine.
        bodies: request bodies, sent in rotation.
        seconds: duration of the measurement; a closed loop continues until it has enough responses.
        warmup_seconds: seconds of load before the measurement.
        clients: clients of a closed loop; 0 for an open loop.
        rate: requests/s of an open loop.
        seed: seed of the arrival times of an open loop.
        path: path of the requests.
    """

    port: int
    bodies: tuple[RequestBody, ...]
    seconds: float
    warmup_seconds: float
    clients: int = 0
    rate: float = 0.0
    seed: int = 0
    path: str = PATH

    def to_json(self) -> str:
        """Serialize for the load generator process."""
        bodies = [asdict(body) | {"data": base64.b64encode(body.data).decode()} for body in self.bodies]
        return json.dumps(asdict(self) | {"bodies": bodies})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse the output of ``to_json``."""
        fields = json.loads(text)
        bodies = (RequestBody(**body | {"data": base64.b64decode(body["data"])}) for body in fields["bodies"])
        return cls(**fields | {"bodies": tuple(bodies)})

    def requests(self) -> list[bytes]:
        """Return complete HTTP requests, head and body."""
        head = "POST {0} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {1}\r\nAccept: {1}\r\nContent-Length: {2}\r\n\r\n"
        return [head.format(self.path, body.content_type, len(body.data)).encode() + body.data for body in self.bodies]


@dataclass(frozen=True)
class TimedResponse:
    """One request: the time at which it was due, its latency in seconds, and its response."""

    due: float
    seconds: float
    response: Response


async def run_load(spec: LoadSpec) -> dict[str, Any]:
    """Generate the load and summarize the responses, see ``summarize``.

    Returns:
        The summary, and ``client_cpu``: CPU utilization of the load generator, from 0 to 1.
    """
    start = time.perf_counter()
    cpu = time.process_time()
    samples, end = await (_closed_loop(spec, start) if spec.clients else _open_loop(spec, start))
    utilization = (time.process_time() - cpu) / (time.perf_counter() - start)
    summary = summarize(samples, start + spec.warmup_seconds, end, by_due=not spec.clients)
    return summary | {"client_cpu": utilization}


def summarize(samples: list[TimedResponse], begin: float, end: float, *, by_due: bool) -> dict[str, Any]:
    """Summarize the requests of a time window.

    Args:
        samples: all requests.
        begin: start of the window on the clock of ``time.perf_counter()``.
        end: end of the window.
        by_due: compute latencies of the requests that were due in the window, instead of those answered in it.

    Returns:
        ``per_second``: responses with status 200 per second; ``p50``, ``p99`` (milliseconds) and ``stages`` (stage →
        mean milliseconds) of those; ``failed``: other status → count; ``failed_p50``, ``failed_p99``: other status →
        milliseconds, in an open loop; ``bytes``: mean size of a response body; ``requests``: number of requests in the
        latencies; ``sent``: number of requests sent.

    Raises:
        ValueError: no request received status 200.
    """
    completed = [s for s in samples if s.response.status == OK and begin <= s.due + s.seconds <= end]
    window = [sample for sample in samples if begin <= sample.due < end] if by_due else completed
    successes = [sample for sample in window if sample.response.status == OK]
    failed = Counter(sample.response.status for sample in samples if sample.response.status != OK)
    failed_latencies: dict[int, list[float]] = defaultdict(list)
    for sample in window:
        if sample.response.status != OK:
            failed_latencies[sample.response.status].append(sample.seconds * 1000)
    if not successes:
        raise ValueError(f"no request received status 200 (statuses: {dict(failed)})")
    latencies = [sample.seconds * 1000 for sample in successes]
    stages: dict[str, float] = defaultdict(float)
    for sample in successes:
        for stage, milliseconds in sample.response.stages.items():
            stages[stage] += milliseconds / len(successes)
    return {
        "per_second": len(completed) / (end - begin),
        "p50": _percentile(latencies, 50),
        "p99": _percentile(latencies, 99),
        "stages": dict(stages),
        "failed": {str(status): count for status, count in failed.items()},
        "failed_p50": {str(status): _percentile(values, 50) for status, values in failed_latencies.items()},
        "failed_p99": {str(status): _percentile(values, 99) for status, values in failed_latencies.items()},
        "bytes": sum(sample.response.size for sample in successes) / len(successes),
        "requests": len(successes),
        "sent": len(samples),
    }


def _percentile(values: list[float], percent: float) -> float:
    return float(np.percentile(values, percent, method="inverted_cdf"))


async def _closed_loop(spec: LoadSpec, start: float) -> tuple[list[TimedResponse], float]:
    """Return the requests and the end time of the measurement."""
    requests: list[bytes] = spec.requests()
    samples: list[TimedResponse] = []
    begin = start + spec.warmup_seconds
    required, successes = max(MIN_RESPONSES, MIN_RESPONSES_PER_CLIENT * spec.clients), 0
    end: float | None = None

    async def run_client(number: int) -> None:
        nonlocal successes, end
        connection = await ClientConnection.open(HOST, spec.port)
        while end is None:
            due = time.perf_counter()
            response = await connection.send(requests[number % len(requests)])
            now = time.perf_counter()
            if end is None and now >= begin + spec.seconds:
                if successes >= required:
                    end = begin + spec.seconds
                elif successes + 1 == required or now > begin + TIMEOUT_SECONDS:
                    end = now
            samples.append(TimedResponse(due, now - due, response))
            successes += response.status == OK and now >= begin
            number += 1
            if not connection.is_open:
                connection = await ClientConnection.open(HOST, spec.port)
        connection.close()

    await asyncio.gather(*(run_client(number) for number in range(spec.clients)))
    assert end is not None
    return samples, end


async def _open_loop(spec: LoadSpec, start: float) -> tuple[list[TimedResponse], float]:
    """Return the requests and the end time of the measurement."""
    requests: list[bytes] = spec.requests()
    samples: list[TimedResponse] = []
    random_source, end = random.Random(spec.seed), start + spec.warmup_seconds + spec.seconds
    idle: list[ClientConnection] = []
    connection_slots = asyncio.Semaphore(MAX_CONNECTIONS)

    async def send(number: int, due: float) -> None:
        async with connection_slots:
            connection = idle.pop() if idle else await ClientConnection.open(HOST, spec.port)
            response = await connection.send(requests[number % len(requests)])
            samples.append(TimedResponse(due, time.perf_counter() - due, response))
            if connection.is_open:
                idle.append(connection)

    pending: set[asyncio.Task[None]] = set()
    due, number = start + random_source.expovariate(spec.rate), 0
    while due < end:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        task = asyncio.create_task(send(number, due))
        pending.add(task)
        task.add_done_callback(pending.discard)
        due, number = due + random_source.expovariate(spec.rate), number + 1
    await asyncio.gather(*pending)
    for connection in idle:
        connection.close()
    return samples, end


def main() -> None:
    """Read a load specification from stdin and print the summary as JSON."""
    spec = LoadSpec.from_json(sys.stdin.read())
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())  # The timeout of epoll has millisecond resolution.
    try:
        print(json.dumps(loop.run_until_complete(run_load(spec))))
    finally:
        loop.close()


if __name__ == "__main__":
    main()
