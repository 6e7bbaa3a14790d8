"""``ranker collect``: copies a served log or feedback from a Kafka topic to a folder."""

from __future__ import annotations

import re
import threading
import time
from datetime import UTC, datetime
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
from pipelines.loop.collected_feedback import CollectedFeedback
from pipelines.loop.feedback_mark import FEEDBACK_SECONDS, LATE
from ranking.artifacts.atomic_files import remove_drafts, replace_file, write_errors
from ranking.artifacts.kafka_address import KafkaAddress
from ranking.artifacts.log_names import FEEDBACK
from ranking.errors import LogError
from ranking.served_log.schema import METADATA_KEY

FILE_NAME = re.compile(r"served-[0-9A-Za-z-]{1,200}\.parquet")
"""Key of a message of a served log: the name of its file."""
TIMEOUT_SECONDS = 10.0
"""Maximum seconds for one operation of the cluster."""
SILENCE_SECONDS = 30.0
"""Maximum seconds without a message before the end of the topic, unless new files are awaited."""
POLL_SECONDS = 0.5
"""Maximum seconds until a request to stop is noticed."""


def collect(topic: KafkaAddress, folder: Path, group: str, stop: threading.Event | None = None) -> int:
    """Write messages to files, and then commit their offsets.

    A message of a served log is a file; one that exists is kept: names are unique and files never change. Messages of
    feedback are merged to files, see ``CollectedFeedback``. So a collection that was interrupted before it committed an
    offset can be repeated.

    Args:
        topic: topic that the service writes.
        folder: folder of the files; it is created if it does not exist.
        group: consumer group whose offsets are used.
        stop: ends the collection; None: it ends at the end of the topic.

    Returns:
        The number of files that were written.

    Raises:
        LogError: the topic cannot be read, or a message is neither a served log nor feedback.
        OutputError: a file cannot be written.
    """
    with write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
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
        self._feedback = CollectedFeedback(folder, topic.topic)
        self._read_until: dict[int, datetime] = {}  # time of the last message of each partition
        self._next_offsets: dict[int, int] = {}
        self._assign()
        self._unread = set(self._next_offsets)
        self._files = 0

    def _assign(self) -> None:
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
            first, end = self._consumer.get_watermark_offsets(partition, timeout=TIMEOUT_SECONDS)
            if 0 <= partition.offset < first:
                print_status(
                    f"{self._topic}, partition {partition.partition}: the topic deleted messages {partition.offset} to "
                    f"{first - 1} before they were collected; raise its retention"
                )
            if partition.offset > end:
                print_status(
                    f"{self._topic}, partition {partition.partition}: ends at {end}, before the committed offset "
                    f"{partition.offset}: the topic was created again, and is read from its start"
                )
            if not first <= partition.offset <= end:
                partition.offset = OFFSET_BEGINNING
            self._next_offsets[partition.partition] = max(partition.offset, first)
        self._consumer.assign(committed)

    def run(self, stop: threading.Event | None) -> int:
        """Collect until ``stop`` is set, or without it until the end of the topic; return the number of files."""
        remove_drafts(self._folder)
        last = written = time.monotonic()
        while self._unread if stop is None else not stop.is_set():
            message = self._consumer.poll(POLL_SECONDS)
            if self._feedback.is_full or time.monotonic() - written > FEEDBACK_SECONDS:
                self._write_feedback()
                written = time.monotonic()
            if message is None or (message.error() is not None and message.error().retriable()):
                if stop is None and time.monotonic() - last > SILENCE_SECONDS:
                    raise LogError(
                        f"{self._topic}: no message within {SILENCE_SECONDS:g} s; check the servers and the network, "
                        "and start the command again"
                    )
                continue
            last = time.monotonic()
            if message.error() is None:
                self._collect(message)
            elif message.error().code() == KafkaError._PARTITION_EOF:
                self._unread.discard(message.partition())
                self._next_offsets[message.partition()] = message.offset()
            elif stop is None or message.error().fatal():
                raise KafkaException(message.error())
            else:
                print_status(f"{self._topic}: {message.error().str()}")  # the client connects again
        self._write_feedback()
        return self._files

    def _collect(self, message: Message) -> None:
        """Write the file of a message, or keep its feedback for the next one.

        Raises:
            LogError: the message is neither a file of a served log nor feedback; those before it are written.
        """
        partition, offset = message.partition(), message.offset()
        name, content = (message.key() or b"").decode(errors="replace"), message.value() or b""
        is_feedback = FEEDBACK.parse(name) is not None and content.startswith(b"{") and content.endswith(b"}\n")
        if is_feedback:
            _, milliseconds = message.timestamp()
            created = datetime.fromtimestamp(milliseconds / 1000, UTC)
            if not self._feedback.is_used:
                self._feedback.mark.set(datetime.fromtimestamp(0, UTC))  # until the end of all partitions is known
            self._feedback.add(partition, offset, created, content)
            self._read_until[partition] = created
        else:
            if self._feedback.is_waiting:
                self._write_feedback()
            if FILE_NAME.fullmatch(name) is None or not _is_served(content):
                raise LogError(
                    f"{self._topic}, partition {partition}, offset {offset}: the message is neither a file of a served "
                    "log nor feedback; use a topic that only the service writes, or set the group's offset to "
                    f"{offset + 1} to skip the message"
                )
            self._files += self._write_served(name, content)
            self._consumer.commit(message, asynchronous=False)
        self._next_offsets[partition] = offset + 1

    def _write_served(self, name: str, content: bytes) -> bool:
        """Write a file of a served log; return whether it is new."""
        file = self._folder / name
        if file.exists():
            return False
        replace_file(file, [content], 0o640)
        return True

    def _write_feedback(self) -> None:
        """Write the feedback that was read, commit its offsets, and mark until when it is complete."""
        files, offsets = self._feedback.write()
        self._files += files
        if offsets:
            self._consumer.commit(
                offsets=[TopicPartition(self._topic.topic, number, last + 1) for number, last in offsets.items()],
                asynchronous=False,
            )
        if self._feedback.is_used and (until := self._complete_until()) is not None:
            self._feedback.mark.set(until)

    def _complete_until(self) -> datetime | None:
        """Return the time until which all feedback was read; None if that is not known.

        Raises:
            LogError: the topic has got more partitions, which are not read.
        """
        times = []
        try:
            topic = self._consumer.list_topics(self._topic.topic, timeout=TIMEOUT_SECONDS).topics[self._topic.topic]
            if len(topic.partitions) > len(self._next_offsets):
                raise LogError(f"{self._topic}: has {len(topic.partitions)} partitions now; start the command again")
            for number, offset in self._next_offsets.items():
                now, partition = datetime.now(UTC), TopicPartition(self._topic.topic, number)
                _, end = self._consumer.get_watermark_offsets(partition, timeout=TIMEOUT_SECONDS)
                until = now if offset == end else self._read_until.get(number)
                if until is None:
                    return None
                times.append(until)
        except KafkaException as error:  # the client connects again
            print_status(f"{self._topic}: {error.args[0].str()}")
            return None
        return min(times) - LATE


def _is_served(content: bytes) -> bool:
    """Return whether a message is a file of a served log."""
    try:
        return METADATA_KEY in (pq.read_schema(pa.BufferReader(content)).metadata or {})
    except (pa.ArrowException, OSError):
        return False
