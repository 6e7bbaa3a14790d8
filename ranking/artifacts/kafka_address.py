"""Address of a Kafka topic, which the service and the offline pipeline share."""

from __future__ import annotations

import re
from dataclasses import dataclass

SCHEME = "kafka://"
ADDRESS = re.compile(
    rf"{SCHEME}(?P<servers>[\w.\-]+:\d{{1,5}}(,[\w.\-]+:\d{{1,5}})*)/(?P<topic>[A-Za-z0-9._\-]{{1,249}})"
)


@dataclass(frozen=True)
class KafkaAddress:
    """A topic and the servers from which clients learn about the cluster.

    Attributes:
        servers: ``HOST:PORT`` of the servers, separated by commas.
        topic: name of the topic.
    """

    servers: str
    topic: str

    @classmethod
    def parse(cls, text: str) -> KafkaAddress:
        """Parse ``kafka://HOST:PORT[,HOST:PORT]/TOPIC``.

        Raises:
            ValueError: the text has another form.
        """
        match = ADDRESS.fullmatch(text)
        if match is None:
            raise ValueError(f"'{text}' is not the address of a Kafka topic: write kafka://HOST:PORT[,HOST:PORT]/TOPIC")
        return cls(match["servers"], match["topic"])

    def __str__(self) -> str:
        return f"{SCHEME}{self.servers}/{self.topic}"
