"""Destinations of the files of the served log."""

from __future__ import annotations

from typing import Protocol

from ranking.artifacts.kafka_address import KafkaAddress
from ranking.errors import ConfigError
from service.served.folder import ServedFolder
from service.settings import Settings


class ServedSink(Protocol):
    """A destination of finished Parquet files.

    Attributes:
        max_bytes: Maximum size of the requests of a file in memory, before compression.
    """

    max_bytes: float

    def scan(self) -> int:
        """Remove what has expired, and return the bytes that count toward ``served_log_max_total_bytes``.

        Raises:
            OSError: The destination cannot be read.
        """

    def write(self, content: memoryview) -> object:
        """Store a file under a new name; it is durable when this method returns.

        Raises:
            OSError: The file may not have been stored.
        """


def open_sink(settings: Settings) -> ServedSink | None:
    """Open the destination that ``served_log`` names; None if it is not set. A Kafka server need not be available yet.

    Raises:
        ConfigError: The Kafka client is not installed.
        OutputError: The folder is not writable.
    """
    if settings.served_log is None:
        return None
    if not isinstance(settings.served_log, KafkaAddress):
        return ServedFolder(settings.served_log, settings.served_log_days)
    try:
        from service.served.kafka import KafkaTopic
    except ModuleNotFoundError as error:
        reason = f"served_log = {settings.served_log} needs {error.name}: pip install 'dselect-ranker[kafka]'"
        raise ConfigError(reason) from None
    return KafkaTopic(settings.served_log)
