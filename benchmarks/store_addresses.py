"""Compare lookups in stores of several kinds: one server, a Redis Cluster, a primary that Sentinels name.

The stores must be running and may be overwritten. They take turns, one lookup each. For a cluster, the pipeline of
redis-py is measured too. Prints a Markdown table of the median processor time and duration of a lookup in milliseconds,
and the median ratio to the first store in the same turn.

    python -m benchmarks.store_addresses redis://HOST:6379/0 redis+cluster://HOST:7000 redis+sentinel://HOST/SERVICE/0
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence
from typing import Protocol

from redis.asyncio.cluster import RedisCluster

from pipelines.feature_store.client import connect
from ranking.artifacts.store_address import StoreAddress, redact_address
from service.feature_store.lookup import open_store
from service.settings import Settings

COUNTS = (10, 100, 500)
"""Keys per lookup."""
TURNS = 200
VALUE = b'{"price": 12.5, "topics": ["topic0_1", "topic1_4"], "clicks": 1234}'
TIMEOUT_MS = 10_000


class Reader(Protocol):
    """Something that reads the values of keys."""

    async def read(self, keys: Sequence[str]) -> list[bytes | None]:
        """Read the value of each key."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class LibraryCluster:
    """Reads from a cluster with the pipeline of redis-py.

    Args:
        address: address of the cluster.
    """

    def __init__(self, address: StoreAddress) -> None:
        host, port = address.hosts[0]
        self._client = RedisCluster(host=host, port=port, protocol=2)

    async def read(self, keys: Sequence[str]) -> list[bytes | None]:
        """Read the value of each key."""
        pipeline = self._client.pipeline()
        for key in keys:
            pipeline.get(key)
        values: list[bytes | None] = await pipeline.execute()
        return values

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def readers_of(urls: Sequence[str]) -> dict[str, Reader]:
    """Return the readers to compare by name."""
    readers: dict[str, Reader] = {}
    for url in urls:
        settings = Settings.model_validate({"repository": ".", "store": url, "store_timeout_ms": TIMEOUT_MS})
        store, address = open_store(settings), StoreAddress.parse(url)
        assert store is not None
        readers[redact_address(url)] = store
        if address.kind == "cluster":
            readers[f"{redact_address(url)}, pipeline of redis-py"] = LibraryCluster(address)
    return readers


async def measure(readers: dict[str, Reader], keys: Sequence[str]) -> dict[str, list[tuple[float, float]]]:
    """Return the processor time and the duration of each lookup in milliseconds, by reader and turn.

    Raises:
        ValueError: a reader returned other values than those in the stores.
    """
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in readers}
    for _ in range(TURNS + 1):
        for name, reader in readers.items():
            start, cpu = time.perf_counter(), time.process_time()
            values = await reader.read(keys)
            times[name].append((1e3 * (time.process_time() - cpu), 1e3 * (time.perf_counter() - start)))
            if values != [VALUE] * len(keys):
                raise ValueError(f"{name} returned wrong values")
    return {name: turns[1:] for name, turns in times.items()}  # the first lookup connects


async def compare(urls: Sequence[str]) -> list[str]:
    """Write the keys to the stores, measure all readers and return the rows of the table."""
    keys = [f"ranker:feed:item:{number}" for number in range(max(COUNTS))]
    for url in urls:
        client = connect(url)
        for key in keys:
            client.set(key, VALUE)
        client.close()
    readers = readers_of(urls)
    rows = []
    for count in COUNTS:
        times = await measure(readers, keys[:count])
        first = next(iter(times.values()))
        for name, turns in times.items():
            cpu, seconds = (statistics.median(values) for values in zip(*turns, strict=True))
            pairs = list(zip(turns, first, strict=True))
            ratios = [statistics.median(one[i] / base[i] for one, base in pairs) for i in (0, 1)]
            rows.append(f"| {count} | {name} | {cpu:.3f} | {seconds:.3f} | {ratios[0]:.2f} | {ratios[1]:.2f} |")
    for reader in readers.values():
        await reader.close()
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("addresses", nargs="+", help="addresses of the stores; the first is the base of the ratios")
    rows = asyncio.run(compare(parser.parse_args().addresses))
    print("| keys | store | processor ms | ms | processor ratio | time ratio |\n|---:|---|---:|---:|---:|---:|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
