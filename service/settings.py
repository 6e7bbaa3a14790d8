"""What an operator may set."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
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

from ranking.artifacts.atomic_files import os_error_text
from ranking.artifacts.feature_store_keys import PREFIX as STORE_PREFIX
from ranking.artifacts.feature_store_keys import require_address
from ranking.errors import ConfigError
from ranking.schema.validation_errors import format_validation_error
from service.backends.base import Precision
from service.backends.select import BackendName
from service.telemetry.logs import LogFormat

PREFIX = "RANKER_"
"""Of environment variables: ``RANKER_MAX_CANDIDATES`` sets ``max_candidates``."""


class Settings(BaseModel):
    """Settings of a service.

    Attributes:
        repository: folder of published bundles; of each model what its current.json names is served.
        poll_seconds: between two looks at the repository for what is to be served.
        default_model: answers ``POST /v1/rank``; may be left out if the repository holds one model.
        max_candidates: items of one request; more are refused with 413.
        max_batch_rows: candidates, of one request or many, that are scored at a time; with more each costs hardly less,
            and whoever comes next waits for longer.
        max_body_bytes: size of a request; more is refused with 413.
        max_string_length: characters of any text in a request: ids, features, names; more is refused with 422.
        max_queue_rows: candidates of the requests that have come and are not answered; who would be one too many is
            refused with 429. One request is always admitted to an empty service, whatever its size.
        max_queue_requests: how many such requests; small ones cost more than their candidates.
        default_deadline_ms: of requests that name none.
        max_deadline_ms: the latest deadline; a request that names a later one, or none, gets this one.
        max_connections: open at a time in each process; more are refused with 503.
        max_header_bytes: of a request's line and headers; more is refused with 431.
        header_seconds: a request's headers must come within this time of the connection or their first byte, else 408.
        read_seconds: a request's body must come within this time of its headers, else 408; and its answer be taken.
        keep_alive_seconds: until a connection without requests is closed; longer than a load balancer keeps it.
        drain_seconds: after SIGTERM the service goes on for so long, not ready, so that load balancers notice.
        grace_seconds: then what was admitted is finished within this time.
        backend: what executes the models; ``auto``: a GPU if there is one, else ONNX Runtime, else PyTorch.
        precision: of a GPU's products.
        workers: processes.
        threads: of each process that score; default: the cores divided by the workers. More than there are cores
            makes everything slower by far.
        keys: file of API keys, as 'ranker keys new' writes it; without one whoever reaches the port may do everything.
        no_keys: serve without keys, though other machines can reach the service.
        operations_port: a port of its own for metrics and admin operations; default: 8001 if other machines can reach
            the service, else the port of all the rest.
        feedback_dir: folder of JSON lines, of what POST /v1/feedback brings; without one it answers 404.
        feedback_max_bytes: of a file of feedback; then the next one is begun.
        feedback_max_seconds: that a file of feedback is written to.
        server_timing: answers say in a Server-Timing header how long each stage of the request took.
        slow_ms: a request that took longer is logged, with the time of each stage.
        log_format: of log lines; default: text on a terminal, else JSON.
        store: address of a Redis in which items and users are looked up before the bundle's tables; it may hold a
            password, and is never shown with it. Default: only the bundle's tables.
        store_timeout_ms: that a look-up there may take; then the request goes on without, and is degraded.
        store_prefix: of the store's keys.
        store_breaker_failures: look-ups in a row that fail before the store is left alone,
        store_breaker_seconds: and for how long, until one look-up tries again.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    repository: Path
    poll_seconds: PositiveFloat = 5.0
    default_model: str | None = None
    max_candidates: PositiveInt = 5_000
    max_batch_rows: PositiveInt = 500
    max_body_bytes: PositiveInt = 8 * 1024 * 1024
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
    workers: PositiveInt = 1
    threads: PositiveInt = 1
    keys: Path | None = None
    no_keys: bool = False
    operations_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    feedback_dir: Path | None = None
    feedback_max_bytes: PositiveInt = 64 * 1024 * 1024
    feedback_max_seconds: PositiveFloat = 600.0
    server_timing: bool = False
    slow_ms: PositiveFloat = 1000.0
    log_format: LogFormat | None = None
    store: SecretStr | None = None
    store_timeout_ms: Annotated[float, Field(gt=0, le=60_000)] = 20.0
    store_prefix: Annotated[str, Field(min_length=1)] = STORE_PREFIX
    store_breaker_failures: PositiveInt = 5
    store_breaker_seconds: Annotated[float, Field(gt=0, le=3600)] = 1.0

    @field_validator("store")
    @classmethod
    def _store_has_an_address(cls, store: SecretStr | None) -> SecretStr | None:
        if store is not None:
            require_address(store.get_secret_value())
        return store

    @model_validator(mode="after")
    def _keys_or_none(self) -> Settings:
        if self.keys is not None and self.no_keys:
            raise ValueError("keys and no_keys exclude each other: leave one out")
        return self

    @model_validator(mode="before")
    @classmethod
    def _threads_fill_the_cores(cls, given: dict[str, Any]) -> dict[str, Any]:
        workers = given.get("workers", 1)
        if given.get("threads") is None and isinstance(workers, int) and workers > 0:
            return given | {"threads": max(1, len(os.sched_getaffinity(0)) // workers)}
        return given


def read(given: Mapping[str, Any], file: Path | None = None, environ: Mapping[str, str] = os.environ) -> Settings:
    """Settings from all the places where an operator may write them.

    Args:
        given: on the command line; these win, None stands for what was not given.
        file: TOML; a setting is taken from it that neither the command line nor the environment has.
        environ: variables, ``PREFIX`` and a setting's name in capitals; others are not looked at.

    Raises:
        ConfigError: the file cannot be read, or a setting is unknown or wrong; says where.
    """
    places: dict[str, Mapping[str, Any]] = {} if file is None else {str(file): _toml(file)}
    places["the environment"] = {
        name: environ[PREFIX + name.upper()] for name in Settings.model_fields if PREFIX + name.upper() in environ
    }
    places["the command line"] = {name: value for name, value in given.items() if value is not None}
    merged = {name: value for place in places.values() for name, value in place.items()}
    try:
        return Settings.model_validate(merged)
    except ValidationError as error:
        wrong = {str(problem["loc"][0]) for problem in error.errors() if problem["loc"]}
        where = [place for place, settings in places.items() if wrong & settings.keys()] or ["settings"]
        raise ConfigError(f"{' and '.join(where)}: {format_validation_error(error, merged)}") from None


def _toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({os_error_text(error)})") from None
    except ValueError as error:  # no UTF-8, no TOML
        raise ConfigError(f"{file} is no TOML: {error}") from None
