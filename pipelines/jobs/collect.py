"""``ranker collect``: copies the files of a served log from a Kafka topic to a folder."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from pipelines.console import print_status
from ranking.artifacts.atomic_files import os_error_text, remove_drafts, replaced_file
from ranking.artifacts.kafka_address import KafkaAddress
from ranking.errors import LogError, OutputError
from ranking.served_log.schema import METADATA_KEY

FILE_NAME = re.compile(r"served-[0-9A-Za-z-]{1,200}\.parquet")
"""Key of a message: the name of its file."""
TIMEOUT_SECONDS = 10.0
"""Maximum seconds for one operation of the cluster."""
SILENCE_SECONDS = 30.0
"""Maximum seconds without a message before the end of the topic, unless new files are awaited."""
POLL_SECONDS = 0.5
"""Maximum seconds until a request to stop is noticed."""


def collect(topic: KafkaAddress, folder: Path, group: str, stop: threading.Event | None = None) -> int:
    """Write each message to the file that its key names, and then commit its offset.

    A file that exists is kept: names are unique and files never change. So a collection that was interrupted before it
    committed an offset can be repeated.

    Args:
        topic: topic that the service writes.
        folder: folder of the files; it is created if it does not exist.
        group: consumer group whose offsets are used.
        stop: ends the collection; None: it ends at the end of the topic.

    Returns:
        The number of files that were written.

    Raises:
        LogError: the topic cannot be read, or a message is not a file of a served log.
        OutputError: a file cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be written ({os_error_text(error)})") from None
    consumer = Consumer(
        {
            "bootstrap.servers": topic.servers,
            "client.id": "ranker-collect",
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    try:
        return _Collector(consumer, topic, folder).run(stop)
    except KafkaException as error:
        raise LogError(f"{topic}: cannot be read ({error.args[0].str()}); start the command again") from None
    finally:
        consumer.close()


class _Collector:
    """Reads all partitions of a topic.

    The partitions are assigned directly, without the group's coordination: two collectors would write the same files.
    """

    def __init__(self, consumer: Consumer, topic: KafkaAddress, folder: Path) -> None:
        self._consumer, self._topic, self._folder = consumer, topic, folder
        self._unread = {partition.partition for partition in self._assign()}

    def _assign(self) -> list[TopicPartition]:
        """Continue each partition after its last committed message."""
        try:
            topic = self._consumer.list_topics(self._topic.topic, timeout=TIMEOUT_SECONDS).topics[self._topic.topic]
        except KafkaException as error:
            reason = error.args[0].str()
            raise LogError(
                f"{self._topic}: cannot be reached ({reason}); check the address, the servers and the network"
            ) from None
        if topic.error is not None:
            raise LogError(f"{self._topic.servers}: the cluster has no topic '{self._topic.topic}': create it")
        partitions = [TopicPartition(self._topic.topic, number) for number in topic.partitions]
        committed: list[TopicPartition] = self._consumer.committed(partitions, timeout=TIMEOUT_SECONDS)
        for partition in committed:
            first, _ = self._consumer.get_watermark_offsets(partition, timeout=TIMEOUT_SECONDS)
            if 0 <= partition.offset < first:
                print_status(
                    f"{self._topic}, partition {partition.partition}: the topic deleted messages {partition.offset} to "
                    f"{first - 1} before they were collected; raise its retention"
                )
            if partition.offset < first:
                partition.offset = OFFSET_BEGINNING
        self._consumer.assign(committed)
        return committed

    def run(self, stop: threading.Event | None) -> int:
        """Collect until ``stop`` is set, or without it until the end of the topic; return the number of files."""
        remove_drafts(self._folder)
        files = 0
        last = time.monotonic()
        while self._unread if stop is None else not stop.is_set():
            message = self._consumer.poll(POLL_SECONDS)
            if message is None or (message.error() is not None and message.error().retriable()):
                if stop is None and time.monotonic() - last > SILENCE_SECONDS:
                    raise LogError(
                        f"{self._topic}: no message within {SILENCE_SECONDS:g} s; check the servers and the network, "
                        "and start the command again"
                    )
                continue
            last = time.monotonic()
            if message.error() is None:
                files += self._write(message)
                self._consumer.commit(message, asynchronous=False)
            elif message.error().code() == KafkaError._PARTITION_EOF:
                self._unread.discard(message.partition())
            elif stop is None or message.error().fatal():
                raise KafkaException(message.error())
            else:
                print_status(f"{self._topic}: {message.error().str()}")  # the client connects again
        return files

    def _write(self, message: Message) -> bool:
        """Write the file of a message; return whether it is new."""
        file = self._folder / self._check(message)
        if file.exists():
            return False
        try:
            with replaced_file(file, 0o640) as stream:
                stream.write(message.value())
        except OSError as error:
            raise OutputError(f"{file}: cannot be written ({os_error_text(error)})") from None
        return True

    def _check(self, message: Message) -> str:
        """Return the name of a message's file.

        Raises:
            LogError: the message is not a file of a served log.
        """
        where = f"{self._topic}, partition {message.partition()}, offset {message.offset()}"
        name = (message.key() or b"").decode(errors="replace")
        try:
            metadata = pq.read_schema(pa.BufferReader(message.value() or b"")).metadata or {}
        except (pa.ArrowException, OSError):
            metadata = {}
        if METADATA_KEY not in metadata or FILE_NAME.fullmatch(name) is None:
            raise LogError(
                f"{where}: the message is not a file of a served log; use a topic that only the service writes, or set "
                f"the group's offset to {message.offset() + 1} to skip the message"
            )
        return name
