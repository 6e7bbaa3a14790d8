"""A log in a Kafka topic: each message is the content of a file, and its key is the name of the file."""

from __future__ import annotations

import errno
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from ranking.artifacts.kafka_address import KafkaAddress
from ranking.artifacts.log_names import LogNames
from service.logs.sink import LogSink, LogUsage

MAX_REQUEST_BYTES = 900_000
"""Maximum size of the content of a write, before compression. Brokers accept messages of 1,048,588 bytes by default."""
MAX_MESSAGE_BYTES = 1_000_000
"""Maximum size of a message."""
DELIVERY_SECONDS = 8.0
"""Maximum seconds until a message is acknowledged; less than ``CLOSE_SECONDS`` of the settings."""
TOPIC_SECONDS = 4.0
"""Seconds for which a topic that the cluster does not know may still appear."""
UNKNOWN_TOPIC = (KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART)


class KafkaTopic(LogSink):
    """A topic whose messages are files; it connects when the first file is written.

    Args:
        address: address of the topic.
        names: names of files, which are the keys of messages.
        advice: fix for content that is larger than a message.
    """

    def __init__(self, address: KafkaAddress, names: LogNames, advice: str) -> None:
        self.max_bytes, self.separates_keys = MAX_REQUEST_BYTES, False
        self._address, self._names, self._advice = address, names, advice
        self._producer: Producer | None = None
        self._connection_error = "no server has answered"

    def scan(self) -> LogUsage:
        """Return no usage: the retention of the topic bounds its size."""
        return LogUsage()

    def write(self, content: bytes | memoryview, key: str | None = None) -> None:  # noqa: ARG002 — of the base class
        """Send a file, and wait until all in-sync replicas have acknowledged it.

        Args:
            content: content of the file.
            key: None, because a message holds content of any API keys.

        Raises:
            OSError: the message was not acknowledged within ``DELIVERY_SECONDS``, or was rejected.
        """
        results: list[KafkaError | None] = []
        try:
            producer = self._producer or self._connect()
            self._producer = None  # after a failure, the next file has a new producer
            producer.produce(
                self._address.topic,
                key=self._names.new(),
                value=bytes(content),
                on_delivery=lambda error, _: results.append(error),
            )
            producer.flush(DELIVERY_SECONDS + 1.0)
        except KafkaException as error:
            results.append(error.args[0])
        if not results or results[0] is not None:
            raise OSError(errno.EIO, self._explanation(results[0] if results else None))
        self._producer = producer

    def _connect(self) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self._address.servers,
                "client.id": f"ranker-{self._names.prefix}",
                "acks": "all",
                "enable.idempotence": True,
                "message.timeout.ms": int(DELIVERY_SECONDS * 1000),
                "topic.metadata.propagation.max.ms": int(TOPIC_SECONDS * 1000),
                "linger.ms": 0,
                "message.max.bytes": MAX_MESSAGE_BYTES,
                "error_cb": self._keep_error,
                "log_level": 0,  # the log reports failures itself
            }
        )

    def _keep_error(self, error: Any) -> None:
        self._connection_error = error.str()

    def _explanation(self, error: KafkaError | None) -> str:
        if error is not None and error.code() in UNKNOWN_TOPIC:
            return f"{self._address.servers}: the cluster has no topic '{self._address.topic}': create it"
        if error is None or error.code() == KafkaError._MSG_TIMED_OUT:
            reason = f"not acknowledged within {DELIVERY_SECONDS:g} s ({self._connection_error})"
            return f"{self._address}: {reason}; check the address, the servers and the network"
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return f"{self._address}: a request is larger than a message; {self._advice}"
        return f"{self._address}: {error.str()}"
