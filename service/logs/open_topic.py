"""Opens a Kafka topic, whose client is optional."""

from __future__ import annotations

from ranking.artifacts.kafka_address import KafkaAddress
from ranking.artifacts.log_names import LogNames
from ranking.errors import ConfigError
from service.logs.sink import LogSink


def open_topic(address: KafkaAddress, names: LogNames, advice: str) -> LogSink:
    """Open a topic; its server need not be available yet.

    Args:
        address: address of the topic.
        names: names of files, which are the keys of messages.
        advice: fix for content that is larger than a message.

    Raises:
        ConfigError: the Kafka client is not installed.
    """
    try:
        from service.logs.kafka_topic import KafkaTopic
    except ModuleNotFoundError as error:
        reason = f"{names.setting} = {address} needs {error.name}: pip install 'dselect-ranker[kafka]'"
        raise ConfigError(reason) from None
    return KafkaTopic(address, names, advice)
