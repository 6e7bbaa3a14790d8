"""Connection of ``ranker counters`` to the feature store of the service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from redis.cluster import RedisCluster

from pipelines.jobs.store_client import STORE_ERRORS, connect, store_error
from ranking.artifacts import bundle, repository
from ranking.artifacts.default_model import read_default_model
from ranking.artifacts.feature_store_keys import counter_prefix
from ranking.artifacts.store_address import redact_address
from ranking.counters.features import DerivedFeatures
from ranking.counters.stored_sums import StateValue
from ranking.errors import OutputError, UsageError
from ranking.frozen.ranker import FrozenRanker


class CounterStore:
    """Client of the values of one model's counters.

    Args:
        url: address of the store.
        prefix: prefix of the keys of the service.
        model: name of the model.

    Attributes:
        start: start of all keys.
        state: key of the sums over all keys.
        loaded: key of the sums over all keys as they were loaded.
        applied: key of the set of applied chunks of logs.
        forgotten: key of the hash of forgotten users.
        client: Redis client.

    Raises:
        OutputError: the store cannot be reached.
        UsageError: the address has an unsupported option.
    """

    def __init__(self, url: str, prefix: str, model: str) -> None:
        self._url = url
        self.client = connect(url)
        self.start = counter_prefix(prefix, model, clustered=isinstance(self.client, RedisCluster))
        self.state, self.loaded, self.applied, self.forgotten = (
            f"{self.start}{name}" for name in ("state", "loaded", "applied", "forgotten")
        )

    @property
    def shared_keys(self) -> tuple[str, ...]:
        """All keys that are not those of one user, item or key."""
        return self.state, self.loaded, self.applied, self.forgotten

    @property
    def address(self) -> str:
        """Address of the store without user name and password."""
        return redact_address(self._url)

    def require_no_eviction(self) -> None:
        """Check that the store does not evict counters when its memory is full.

        Raises:
            OutputError: it may, or it cannot be reached.
        """
        with self.errors("fix the store, then try again"):
            client: Any = self.client
            if isinstance(client, RedisCluster):
                servers = list(client.info("memory", target_nodes=RedisCluster.PRIMARIES).values())
            else:
                servers = [client.info("memory")]
        for memory in servers:
            policy = str(memory.get("maxmemory_policy", ""))
            if memory.get("maxmemory") and policy.startswith("allkeys-"):
                raise OutputError(
                    f"{self.address}: evicts counters when its memory is full (maxmemory-policy is {policy}), so that "
                    "users would start again from the bundle; set it to noeviction"
                )

    @contextmanager
    def errors(self, hint: str) -> Iterator[None]:
        """Convert errors of the store to OutputError, whose message ends with the hint."""
        try:
            yield
        except STORE_ERRORS as error:
            raise store_error(self._url, error, "cannot be written", hint) from None


def read_state(store: CounterStore, key: str, hint: str = "fix the store, then try again") -> StateValue | None:
    """Read the sums over all keys; None if the store has none, or damaged ones.

    Args:
        store: the store.
        key: ``state`` or ``loaded`` of the store.
        hint: end of the message of an error.

    Raises:
        OutputError: the store cannot be reached.
    """
    with store.errors(hint):
        value: Any = store.client.get(key)
    try:
        return None if value is None else StateValue.decode(value)
    except ValueError:
        return None


def load_served(path: Path, model: str | None) -> tuple[str, FrozenRanker, DerivedFeatures]:
    """Load the current version of a model with its state.

    Args:
        path: the repository.
        model: name of the model; default: the default model of the repository.

    Returns:
        The name, the ranker and its counters.

    Raises:
        BundleError: the model does not exist or cannot be read.
        UsageError: the model has no counters.
    """
    names = repository.list_models(path)
    name = model or read_default_model(path) or (names[0] if names else None)
    if name is None or name not in names:
        raise UsageError(f"{path} has no model '{name}': it has {', '.join(names) or 'none'}")
    version = repository.read_release(path, name).version
    ranker = bundle.load(repository.bundle_folder(path, name, version))
    if ranker.derived is None or not ranker.schema.counters:
        raise UsageError(f"version {version} of {name} has no counters: declare [[counters]] and train it again")
    return name, ranker, ranker.derived
