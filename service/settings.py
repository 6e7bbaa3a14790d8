"""Settings of the service, from the command line, the environment and a file."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
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
from ranking.artifacts.kafka_address import KafkaAddress
from ranking.artifacts.log_address import parse_log_address
from ranking.artifacts.object_store import ObjectLocation, check_location
from ranking.artifacts.store_address import check_address
from ranking.errors import ConfigError
from ranking.schema.validation_errors import format_validation_error
from service.backends.base import BackendName
from service.protocol.messages import SuspectReason
from service.telemetry.logs import LogFormat

PREFIX = "RANKER_"
"""Prefix of environment variables: ``RANKER_MAX_CANDIDATES`` sets ``max_candidates``."""
BUFFERED_BYTES = 256 * 1024 * 1024
"""Bytes of request bodies that all processes of a service hold together."""
ROWS_PER_REQUEST = 16
"""Maximum number of admitted candidates divided by that of requests."""
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

REMOVED = {
    "default_deadline_ms": "max_deadline_ms",
    "feedback_max_bytes": None,
    "feedback_max_key_bytes": "max_log_bytes",
    "feedback_max_total_bytes": "max_log_bytes",
    "feedback_memory_bytes": None,
    "header_seconds": "read_seconds",
    "max_buffered_bytes": None,
    "max_header_bytes": None,
    "max_queue_requests": "max_queue_rows",
    "max_string_length": None,
    "precision": None,
    "server_timing": None,
    "served_log_max_bytes": None,
    "served_log_max_total_bytes": "max_log_bytes",
    "store_breaker_failures": None,
    "store_breaker_seconds": None,
    "worker_timeout_seconds": None,
}
"""Settings of earlier versions, and the settings that replace them."""
OPTIONS = {"RANKER_HOST": "--host", "RANKER_PORT": "--port"}
"""Variables that look like settings but are options of the command line only."""


LogTarget: TypeAlias = Path | KafkaAddress | ObjectLocation
"""Destination of a log."""


def _parse_sink(value: Any) -> Any:
    """Parse the address of a Kafka topic or a location in object storage; any other text is a folder."""
    if not isinstance(value, str | LogTarget):
        raise PydanticKnownError("string_type")
    return parse_log_address(value) or value if isinstance(value, str) else value


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
    """Settings of the service, in the order of docs/settings.md, which is generated from them."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    repository: Path
    """Folder of published models; the argument of `ranker serve`.

    The service serves the versions that each model's `current.json` names.
    """
    remote: Annotated[str, AfterValidator(check_location)] | None = None
    """Repository in object storage: `s3://BUCKET/PATH`, `gs://BUCKET/PATH` or `az://CONTAINER/PATH`.

    The folder is then a copy, which each poll updates with the versions that may be served and which nothing else
    writes. `ranker push` fills it. Default: none; the folder is the repository.
    """
    poll_seconds: PositiveFloat = 5.0
    """Seconds between polls of the repository.

    Lower it to serve releases sooner; raise it to reduce the load on the filesystem, or the number of requests to
    object storage (two, and two per model).
    """
    default_model: str | None = None
    """Model that answers `POST /v1/rank`.

    Default: the default model of the repository, see `ranker release --default`.
    """
    copy_tables: bool | None = None
    """Copy the feature tables of bundles into the memory of each process.

    Otherwise their files are memory-mapped: processes share them and tables may exceed the memory, but truncating a
    file of a served version ends the processes. Default: copy them if there is one process. Set it to false for
    several services on a machine, on a repository whose files are never changed in place.
    """
    workers: PositiveInt = 1
    """Number of processes.

    Raise it if requests are small and the event loop is the bottleneck. `workers` × `threads` should equal the number
    of cores. Processes share a GPU; each takes its own memory there, about 1.6 GiB with one small version.
    """
    threads: PositiveInt = Field(default_factory=_default_threads)
    """Scoring threads per process.

    Default: the number of cores divided by `workers`. More threads than cores make everything much slower: set it in a
    container with a CPU quota, because the default counts cores.
    """
    backend: BackendName = "auto"
    """Backend that executes the models.

    `auto` selects `torch` for per-example gates, else `cuda` with a GPU, else `onnxruntime`.
    """
    max_candidates: PositiveInt = 5_000
    """Maximum number of candidates per request. Larger requests are rejected with 413."""
    max_batch_rows: PositiveInt = 500
    """Maximum number of candidates per batch.

    A larger batch makes every request wait longer and costs hardly less per candidate.
    """
    max_body_bytes: PositiveInt = 8 * 1024 * 1024
    """Maximum size of a request body.

    Larger bodies are rejected with 413. Raise it for many features per candidate. A process holds at most 256 MiB
    divided by `workers`, and at least four such bodies.
    """
    max_queue_rows: PositiveInt = 16_000
    """Maximum number of candidates of admitted requests. Requests above it are rejected with 429.

    At most a sixteenth as many requests are admitted, because small requests cost more than their candidates. An idle
    service admits one request of any size. The longest wait is this limit divided by the candidates scored per second.
    """
    max_deadline_ms: PositiveFloat | None = None
    """Upper bound on the deadline of every request, and the deadline of requests that set none.

    Set it to the callers' timeout. Default: no bound.
    """
    max_connections: PositiveInt = 3_000
    """Maximum number of open connections per process, each an open file.

    The first 100 above it receive 503 and are closed; any beyond those are closed immediately.
    """
    read_seconds: PositiveFloat = 10.0
    """Time limit for the body, from the headers, and for the client to read the response.

    Slower bodies are rejected with 408. Headers must arrive within 5 s, or within this time if it is shorter.
    """
    keep_alive_seconds: PositiveFloat = 75.0
    """Seconds until an idle connection is closed.

    It must exceed the idle timeout of the load balancer, so that the load balancer closes connections first.
    """
    drain_seconds: NonNegativeFloat = 0.0
    """Seconds after SIGTERM in which the service is not ready but still serves requests, so that load balancers notice
    (Kubernetes: 5).
    """
    grace_seconds: PositiveFloat = 25.0
    """Maximum seconds after `drain_seconds` to finish admitted requests.

    The platform's kill timeout must be at least `drain_seconds` + `grace_seconds` + 15 s (`docker run --stop-timeout`;
    the chart, Compose and KServe files set it).
    """
    keys: Path | None = None
    """File of API keys written by `ranker keys new`.

    Without it every client that reaches the port may call every operation. Required if other machines can reach the
    service.
    """
    no_keys: bool = False
    """Serve without API keys although other machines can reach the service.

    Set it only if another component controls access.
    """
    operations_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """Separate port for metrics and admin operations.

    Default: 8001 if other machines can reach the service, otherwise the service's port.
    """
    feedback_dir: Annotated[LogTarget, BeforeValidator(_parse_sink)] | None = None
    """Folder for the JSON lines of `POST /v1/feedback`, `kafka://HOST:PORT[,HOST:PORT]/TOPIC`, or object storage
    (`s3://BUCKET/PATH`, `gs://BUCKET/PATH`, `az://CONTAINER/PATH`).

    Default: none; feedback receives 404.
    """
    feedback_max_seconds: PositiveFloat = 600.0
    """Age at which a feedback file is closed, if it has not reached 64 MiB before."""
    feedback_reject: Annotated[frozenset[SuspectReason], BeforeValidator(_split)] = frozenset({"value", "time"})
    """Reasons for which suspect feedback is rejected with 422, separated by commas, or `none`.

    For other reasons it is only counted.
    """
    served_log: Annotated[LogTarget, BeforeValidator(_parse_sink)] | None = None
    """Folder for the served log (what was answered, with the feature values used), Kafka topic or object storage, see
    `feedback_dir`. Default: none; nothing is logged of the requests that are answered.
    """
    served_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the users whose requests are in the served log, completely or not at all.

    Requests without a user are sampled by their id. Lower it if the log becomes too large.
    """
    served_log_seconds: Annotated[float, Field(ge=1)] = 10.0
    """Maximum seconds until an answered request is in a finished file of the served log.

    A killed process loses at most the answers of this time. Raise it for fewer, larger files.
    """
    served_log_days: PositiveFloat = 30.0
    """Age in days at which files of the served log are deleted."""
    served_log_user_key: SecretStr | None = None
    """Secret key of the hashes that replace user ids in the served log. Default: the ids themselves."""
    served_log_exclude: Annotated[frozenset[str], BeforeValidator(_split)] = frozenset()
    """Columns of features that the served log leaves out, separated by commas."""
    max_log_bytes: PositiveInt = 10 * 1024**3
    """Maximum size of all files in the feedback folder, and of those in the folder of the served log.

    Beyond it feedback is rejected with 503, and requests are not logged. The feedback of one API key may take half of
    it; beyond that it is rejected with 429. Keep it below the size of the volume, or below half of it if both folders
    are on the same one.
    """
    slow_ms: PositiveFloat = 1000.0
    """Requests slower than this many milliseconds are logged with the time of each stage.

    Set it to the callers' timeout.
    """
    log_format: LogFormat | None = None
    """Format of log lines. Default: text on a terminal, otherwise JSON."""
    store: SecretStr | None = None
    """Address of a Redis that is queried for item and user features before the bundle's tables:
    `redis://HOST:PORT/DB`, `unix:///PATH`, or a cluster or Sentinels (docs/serving.md); `rediss…://` for TLS. It may
    contain a password and is never shown with it. Default: only the bundle's tables.
    """
    store_timeout_ms: Annotated[float, Field(gt=0, le=60000)] = 20.0
    """Maximum milliseconds to wait for the store.

    After that the request continues without it, and its response is degraded. Delays of the event loop of the service
    do not count.
    """
    store_prefix: Annotated[str, Field(min_length=1)] = DEFAULT_KEY_PREFIX
    """Prefix of the store's keys.

    Set it if several services share a Redis but not their values; `ranker items load` and `ranker users load` take it
    as `--prefix`.
    """

    @field_validator("store")
    @classmethod
    def _check_store_address(cls, store: SecretStr | None) -> SecretStr | None:
        if store is not None:
            check_address(store.get_secret_value())
        return store

    @property
    def body_budget(self) -> int:
        """Maximum number of bytes of request bodies that a process holds.

        The processes share ``BUFFERED_BYTES``, but each has room for several large bodies.
        """
        return max(BUFFERED_BYTES // self.workers, 4 * self.max_body_bytes)

    @property
    def max_queue_requests(self) -> int:
        """Maximum number of admitted requests."""
        return max(1, self.max_queue_rows // ROWS_PER_REQUEST)

    @property
    def end_seconds(self) -> float:
        """Maximum seconds from a signal to the end of a process, after which it hangs."""
        return self.drain_seconds + self.grace_seconds + KILL_MARGIN_SECONDS

    @property
    def copies_tables(self) -> bool:
        """Whether feature tables are copied into memory, not memory-mapped."""
        return self.workers == 1 if self.copy_tables is None else self.copy_tables

    @model_validator(mode="after")
    def _check_targets(self) -> Settings:
        served, feedback = self.served_log, self.feedback_dir
        if isinstance(served, KafkaAddress) and isinstance(feedback, KafkaAddress) and served.topic == feedback.topic:
            raise ValueError(f"served_log and feedback_dir both name the topic '{served.topic}': use a topic for each")
        if isinstance(served, ObjectLocation) and served == feedback:
            raise ValueError(f"served_log and feedback_dir are both {served}: use a location for each")
        return self

    @model_validator(mode="after")
    def _check_keys(self) -> Settings:
        if self.keys is not None and self.no_keys:
            raise ValueError("keys and no_keys are mutually exclusive; set only one")
        return self


def describe_setting(name: str) -> str:
    """Return the description of a setting, with its default unless that is false, as one line of plain text."""
    text = " ".join((Settings.model_fields[name].description or "").replace("`", "'").split())
    default = format_default(name)
    return text if default in (None, "false") else f"{text} Default: {default}."


def format_default(name: str) -> str | None:
    """Return the default of a setting as text; None if there is none, or if the description names it."""
    field = Settings.model_fields[name]
    value = field.default
    if value is None or field.is_required() or field.default_factory:
        return None
    if isinstance(value, frozenset):
        return ",".join(sorted(value)) or "none"
    if name.endswith("_bytes"):
        unit, size = ("GiB", 1024**3) if value >= 1024**3 else ("MiB", 1024**2)
        return f"{value / size:g} {unit}"
    return str(value).lower() if isinstance(value, str | bool) else f"{value:g}"


def load_settings(
    options: Mapping[str, Any], file: Path | None = None, environ: Mapping[str, str] = os.environ
) -> Settings:
    """Load settings from the command line, the environment and a file, in this order of precedence.

    Args:
        options: settings from the command line; None values are ignored.
        file: TOML file of settings.
        environ: environment variables. Those with ``PREFIX`` must name a setting in upper case.

    Raises:
        ConfigError: the file cannot be read, or a setting is unknown or invalid. The message names the source.
    """
    sources: dict[str, Mapping[str, Any]] = {} if file is None else {str(file): _read_toml(file)}
    sources["the environment"] = _read_environment(environ)
    sources["the command line"] = {name: value for name, value in options.items() if value is not None}
    for source, values in sources.items():
        for name in sorted(values.keys() & REMOVED.keys()):
            fix = f"set {REMOVED[name]} instead" if REMOVED[name] else "delete it; CHANGELOG.md lists what replaces it"
            raise ConfigError(f"{source}: {name}: this setting was removed: {fix}")
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
        ConfigError: a variable has the prefix but names no setting.
    """
    names = {PREFIX + name.upper(): name for name in (*Settings.model_fields, *REMOVED)}
    variables = {
        variable: value
        for variable, value in environ.items()
        if variable.startswith(PREFIX) and variable not in TEST_VARIABLES and not _is_service_link(variable, value)
    }
    for variable in sorted(variables.keys() - names.keys()):
        upper_names = [name.upper() for name in Settings.model_fields]
        similar = difflib.get_close_matches(variable.removeprefix(PREFIX), upper_names, n=1, cutoff=0.7)
        fix = f"did you mean {PREFIX}{similar[0]}?" if similar else "docs/settings.md lists the settings"
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
