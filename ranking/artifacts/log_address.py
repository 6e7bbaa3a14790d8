"""Addresses of logs that are not in a folder."""

from __future__ import annotations

import re

from ranking.artifacts.kafka_address import KafkaAddress
from ranking.artifacts.object_store import ObjectLocation

START = re.compile(r"(kafka|s3|gs|az):")
"""Start of what is meant as such an address."""


def parse_log_address(text: str) -> KafkaAddress | ObjectLocation | None:
    """Parse the address of a Kafka topic or a location in object storage; return None for any other text.

    Raises:
        ValueError: it begins like one, but is not valid.
    """
    start = START.match(text)
    if start is None:
        return None
    return KafkaAddress.parse(text) if start[1] == "kafka" else ObjectLocation.parse(text)
