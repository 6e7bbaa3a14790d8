"""Settings of the service, from the command line, the environment and a file."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticKnownError

from ranking.artifacts.atomic_files import os_error_text
from ranking.artifacts.feature_store_keys import DEFAULT_KEY_PREFIX
from ranking.artifacts.kafka_address import SCHEME, KafkaAddress
from ranking.artifacts.store_address import check_address
from ranking.errors import ConfigError
from ranking.schema.validation_errors import format_validation_error
from service.backends.base import Precision
from service.backends.select import BackendName
from service.protocol.messages import SuspectReason
from service.telemetry.logs import LogFormat

PREFIX = "RANKER_"
"""Prefix of environment variables: ``RANKER_MAX_CANDIDATES`` sets ``max_candidates``."""
DEFAULT_BUFFERED_BYTES = 256 * 1024 * 1024
"""Default of the bytes of request bodies that all processes of a service hold together."""
CLOSE_SECONDS = 10.0
"""Maximum seconds to write what is in memory when the service stops, after ``drain_seconds`` and ``grace_seconds``.

Each part that writes has all of them, because the parts close at the same time.
"""
KILL_MARGIN_SECONDS = CLOSE_SECONDS + 3.0
"""Seconds after the drain and grace periods until a process that still runs is killed."""

TEST_VARIABLES = frozenset({"RANKER_DATA", "RANKER_SOAK_SECONDS"})
"""Variables with the prefix that configure this project's tests, not the service."""

SERVICE_LINK = re.compile(r"RANKER_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")
"""Variables that Kubernetes sets in containers beside a Service whose name begins with ``ranker``."""
SERVICE_URL = re.compile(r"(tcp|udp|sctp)://.*")
"""Value of the further variable ``…_PORT`` of such a Service; no setting has a value of this form."""

OPTIONS = {"RANKER_HOST": "--host", "RANKER_PORT": "--port"}
"""Variables that look like settings but are options of the command line only."""


def _parse_sink(value: Any) -> Any:
    """Parse the address of a Kafka topic; any other text is a folder."""
    if not isinstance(value, str | Path | KafkaAddress):
        raise PydanticKnownError("string_type")
    return KafkaAddress.parse(value) if isinstance(value, str) and value.startswith(SCHEME) else value


def _split(reasons: Any) -> Any:
    """Split text at commas; ``none`` is the empty list."""
    if not isinstance(reasons, str):
        return reasons
    return [] if reasons == "none" else [reason.strip() for reason in reasons.split(",")]


def _default_threads(values: dict[str, Any]) -> int:
    """Divide the cores by the number of processes in these valid settings."""
    workers: int = values.get("workers", 1)
    return max(1, len(os.sched_getaffinity(0)) // workers)


class Settings(BaseModel):
    """Settings of the service.

    Attributes:
        repository: Folder of published bundles. The service serves the versions that each model's current.json names.
        poll_seconds: Seconds between polls of the repository.
        default_model: Model that answers ``POST /v1/rank``. Optional if the repository holds one model.
        max_candidates: Maximum number of candidates per request. Larger requests are rejected with 413.
        max_batch_rows: Maximum number of candidates per batch. A larger batch makes every request wait longer and
            costs hardly less per candidate.
        max_body_bytes: Maximum size of a request body. Larger bodies are rejected with 413.
        max_buffered_bytes: Maximum number of bytes of all request bodies that a process holds, complete or still
            arriving; at least twice ``max_body_bytes``. Bodies above it are rejected with 429. Default: see
            ``body_budget``.
        max_string_length: Maximum number of characters of any text in a request (ids, features, names). Longer text is
            rejected with 422.
        max_queue_rows: Maximum number of candidates of admitted requests. Requests above this limit are rejected with
            429. An idle service admits one request of any size.
        max_queue_requests: Maximum number of admitted requests. Small requests cost more than their candidates.
        default_deadline_ms: Deadline of requests that set none.
        max_deadline_ms: Upper bound on every request's deadline, including requests that set none.
        max_connections: Maximum number of open connections per process. Connections above it are rejected with 503.
        max_header_bytes: Maximum size of the request line and headers. Larger ones are rejected with 431.
        header_seconds: Time limit for the headers, from the connection or their first byte. Slower requests are
            rejected with 408.
        read_seconds: Time limit for the body, from the headers, and for the client to read the response. Slower bodies
            are rejected with 408.
        keep_alive_seconds: Seconds until an idle connection is closed; must exceed the load balancer's idle timeout.
        drain_seconds: Seconds after SIGTERM in which the service is not ready but still serves requests, so that load
            balancers notice.
        grace_seconds: Maximum seconds after that to finish admitted requests.
        backend: Backend that executes the models. ``auto`` selects a GPU, else ONNX Runtime, else PyTorch.
        precision: Precision of matrix products on a GPU.
        copy_tables: Copy the feature tables of bundles into the memory of each process. Otherwise their files are
            memory-mapped: processes share them and tables may exceed the memory, but truncating a file of a served
            version ends the processes. Default: copy them if there is one process.
        workers: Number of processes.
        worker_timeout_seconds: Seconds after which a worker process that does not respond is killed and replaced; only
            with several workers.
        threads: Number of scoring threads per process. Default: the number of cores divided by ``workers``. More
            threads than cores make everything much slower.
        keys: File of API keys written by 'ranker keys new'. Without it every client that reaches the port may call
            every operation.
        no_keys: Serve without API keys although other machines can reach the service.
        operations_port: Separate port for metrics and admin operations. Default: 8001 if other machines can reach the
            service, otherwise the service's port.
        feedback_dir: Folder for the JSON lines of POST /v1/feedback, or ``kafka://HOST:PORT[,HOST:PORT]/TOPIC``.
            Without it that request returns 404.
        feedback_max_bytes: Size at which a feedback file is closed.
        feedback_max_seconds: Age at which a feedback file is closed.
        feedback_max_total_bytes: Maximum size of all files in the feedback folder. Beyond it feedback is rejected with
            503.
        feedback_max_key_bytes: Maximum size of the files of one API key in the feedback folder. Beyond it the key's
            feedback is rejected with 429.
        feedback_reject: Reasons for which suspect feedback is rejected with 422, separated by commas. Suspect feedback
            for other reasons is only counted. ``none``: no feedback is rejected.
        feedback_memory_bytes: Memory for the most recent answers, against which feedback is checked; all processes
            share it. 0: feedback is not compared with answers.
        served_log: Folder for the served log, or ``kafka://HOST:PORT[,HOST:PORT]/TOPIC``. Without it, nothing is
            logged of the requests that are answered.
        served_share: Share of the users whose requests are in the served log, completely or not at all. Requests
            without a user are sampled by their id.
        served_log_seconds: Maximum seconds until an answered request is in a finished file of the served log.
        served_log_max_bytes: Size in memory of a process's requests at which they are written earlier.
        served_log_max_total_bytes: Maximum size of all files in the served log. Beyond it requests are not logged.
        served_log_days: Age in days at which files of the served log are deleted.
        served_log_user_key: Key of the hashes that replace user ids in the served log. Default: the ids themselves.
        served_log_exclude: Columns of features that the served log leaves out, separated by commas.
        server_timing: Add a Server-Timing header with the time of each stage to responses.
        slow_ms: Requests slower than this are logged with the time of each stage.
        log_format: Format of log lines. Default: text on a terminal, otherwise JSON.
        store: Address of a Redis that is queried for item and user features before the bundle's tables. It may contain
            a password and is never shown with it. Default: only the bundle's tables.
        store_timeout_ms: Maximum time to wait for the store. After that the request continues without it, and its
            response is degraded.
        store_prefix: Prefix of the store's keys.
        store_breaker_failures: Consecutive failed lookups that open the circuit breaker.
        store_breaker_seconds: Seconds between probes while the circuit breaker is open.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    repository: Path
    poll_seconds: PositiveFloat = 5.0
    default_model: str | None = None
    max_candidates: PositiveInt = 5_000
    max_batch_rows: PositiveInt = 500
    max_body_bytes: PositiveInt = 8 * 1024 * 1024
    max_buffered_bytes: PositiveInt | None = None
    max_string_length: PositiveInt = 1_024
    max_queue_rows: PositiveInt = 16_000
    max_queue_requests: PositiveInt = 1_000
    default_deadline_ms: PositiveFloat | None = None
    max_deadline_ms: PositiveFloat | None = None
    max_connections: PositiveInt = 3_000
    max_header_bytes: PositiveInt = 32 * 1024
    header_seconds: PositiveFloat = 5.0
    read_seconds: PositiveFloat = 10.0
    keep_alive_seconds: PositiveFloat = 75.0
    drain_seconds: NonNegativeFloat = 0.0
    grace_seconds: PositiveFloat = 25.0
    backend: BackendName = "auto"
    precision: Precision = "float32"
    copy_tables: bool | None = None
    workers: PositiveInt = 1
    worker_timeout_seconds: Annotated[float, Field(ge=2, le=3600)] = 10.0
    threads: PositiveInt = Field(default_factory=_default_threads)
    keys: Path | None = None
    no_keys: bool = False
    operations_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    feedback_dir: Annotated[Path | KafkaAddress, BeforeValidator(_parse_sink)] | None = None
    feedback_max_bytes: PositiveInt = 64 * 1024 * 1024
    feedback_max_seconds: PositiveFloat = 600.0
    feedback_max_total_bytes: PositiveInt = 10 * 1024**3
    feedback_max_key_bytes: PositiveInt = 5 * 1024**3
    feedback_reject: Annotated[frozenset[SuspectReason], BeforeValidator(_split)] = frozenset({"value", "time"})
    feedback_memory_bytes: NonNegativeInt = 64 * 1024 * 1024
    served_log: Annotated[Path | KafkaAddress, BeforeValidator(_parse_sink)] | None = None
    served_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    served_log_seconds: Annotated[float, Field(ge=1)] = 10.0
    served_log_max_bytes: PositiveInt = 64 * 1024 * 1024
    served_log_max_total_bytes: PositiveInt = 10 * 1024**3
    served_log_days: PositiveFloat = 30.0
    served_log_user_key: SecretStr | None = None
    served_log_exclude: Annotated[frozenset[str], BeforeValidator(_split)] = frozenset()
    server_timing: bool = False
    slow_ms: PositiveFloat = 1000.0
    log_format: LogFormat | None = None
    store: SecretStr | None = None
    store_timeout_ms: Annotated[float, Field(gt=0, le=60_000)] = 20.0
    store_prefix: Annotated[str, Field(min_length=1)] = DEFAULT_KEY_PREFIX
    store_breaker_failures: PositiveInt = 5
    store_breaker_seconds: Annotated[float, Field(gt=0, le=3600)] = 1.0

    @field_validator("store")
    @classmethod
    def _check_store_address(cls, store: SecretStr | None) -> SecretStr | None:
        if store is not None:
            check_address(store.get_secret_value())
        return store

    @property
    def body_budget(self) -> int:
        """Maximum number of bytes of request bodies that a process holds.

        By default the processes share ``DEFAULT_BUFFERED_BYTES``, but each has room for several large bodies.
        """
        if self.max_buffered_bytes is not None:
            return self.max_buffered_bytes
        return max(DEFAULT_BUFFERED_BYTES // self.workers, 4 * self.max_body_bytes)

    @property
    def end_seconds(self) -> float:
        """Maximum seconds from a signal to the end of a process, after which it hangs."""
        return self.drain_seconds + self.grace_seconds + KILL_MARGIN_SECONDS

    @property
    def copies_tables(self) -> bool:
        """Whether feature tables are copied into memory, not memory-mapped."""
        return self.workers == 1 if self.copy_tables is None else self.copy_tables

    @model_validator(mode="after")
    def _check_body_budget(self) -> Settings:
        if self.max_buffered_bytes is not None and self.max_buffered_bytes < 2 * self.max_body_bytes:
            raise ValueError(
                f"max_buffered_bytes = {self.max_buffered_bytes} is less than twice max_body_bytes = "
                f"{self.max_body_bytes}, so that a body of that size would always be rejected: set at least "
                f"{2 * self.max_body_bytes}, or lower max_body_bytes"
            )
        return self

    @model_validator(mode="after")
    def _check_topics(self) -> Settings:
        served, feedback = self.served_log, self.feedback_dir
        if isinstance(served, KafkaAddress) and isinstance(feedback, KafkaAddress) and served.topic == feedback.topic:
            raise ValueError(f"served_log and feedback_dir both name the topic '{served.topic}': use a topic for each")
        return self

    @model_validator(mode="after")
    def _check_keys(self) -> Settings:
        if self.keys is not None and self.no_keys:
            raise ValueError("keys and no_keys are mutually exclusive; set only one")
        return self


def load_settings(
    options: Mapping[str, Any], file: Path | None = None, environ: Mapping[str, str] = os.environ
) -> Settings:
    """Load settings from the command line, the environment and a file, in this order of precedence.

    Args:
        options: Settings from the command line; None values are ignored.
        file: TOML file of settings.
        environ: Environment variables. Those with ``PREFIX`` must name a setting in upper case.

    Raises:
        ConfigError: The file cannot be read, or a setting is unknown or invalid. The message names the source.
    """
    sources: dict[str, Mapping[str, Any]] = {} if file is None else {str(file): _read_toml(file)}
    sources["the environment"] = _read_environment(environ)
    sources["the command line"] = {name: value for name, value in options.items() if value is not None}
    merged = {name: value for values in sources.values() for name, value in values.items()}
    try:
        return Settings.model_validate(merged)
    except ValidationError as error:
        invalid = {str(problem["loc"][0]) for problem in error.errors() if problem["loc"]}
        where = [source for source, values in sources.items() if invalid & values.keys()] or ["settings"]
        raise ConfigError(f"{' and '.join(where)}: {format_validation_error(error, merged, Settings)}") from None


def _read_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings in environment variables, by name.

    Raises:
        ConfigError: A variable has the prefix but names no setting.
    """
    names = {PREFIX + name.upper(): name for name in Settings.model_fields}
    variables = {
        variable: value
        for variable, value in environ.items()
        if variable.startswith(PREFIX) and variable not in TEST_VARIABLES and not _is_service_link(variable, value)
    }
    for variable in sorted(variables.keys() - names.keys()):
        upper_names = [name.removeprefix(PREFIX) for name in names]
        similar = difflib.get_close_matches(variable.removeprefix(PREFIX), upper_names, n=1, cutoff=0.7)
        fix = f"did you mean {PREFIX}{similar[0]}?" if similar else "docs/operations.md lists the settings"
        fix = f"use the option {OPTIONS[variable]}" if variable in OPTIONS else fix
        raise ConfigError(f"the environment: {variable}: unknown setting; {fix}")
    return {names[variable]: value for variable, value in variables.items()}


def _is_service_link(variable: str, value: str) -> bool:
    return SERVICE_LINK.fullmatch(variable) is not None or SERVICE_URL.fullmatch(value) is not None


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({os_error_text(error)})") from None
    except ValueError as error:  # not UTF-8, or not TOML
        raise ConfigError(f"{file} is not valid TOML: {error}") from None
