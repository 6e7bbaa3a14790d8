"""Change of counters when another version becomes the current one (``ranker release --version``)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pipelines.console import print_status
from pipelines.feature_store.counter_store import CounterStore, read_state
from pipelines.jobs.counter_loss import FLAG, Coverage, describe_losses
from ranking.artifacts import repository
from ranking.errors import BundleError, RankerError


def current_version(repo: Path, name: str) -> int | None:
    """Return the current version of a model; None if there is none, or the release is damaged."""
    try:
        release = repository.find_release(repo, name)
    except BundleError:
        return None
    return None if release is None else release.version


def describe_counters(repo: Path, name: str, before: int, after: int, url: str | None, prefix: str) -> None:
    """Print until when the counters of a version count, what the store holds, and how to restore counters.

    Args:
        repo: the repository.
        name: name of the model.
        before: version that was current.
        after: version that is current now.
        url: address of the store; None if it is unknown.
        prefix: prefix of the keys.
    """
    try:
        new = Coverage.of_version(repository.bundle_folder(repo, name, after))
    except BundleError as error:
        print_status(f"the counters of version {after} cannot be read: {error}")
        return
    if new is None:
        return
    try:
        old = Coverage.of_version(repository.bundle_folder(repo, name, before))
    except BundleError:
        old = None
    compared = "" if old is None else f", those of version {before} until {old.clock.text}"
    losses = [] if old is None else old.losses(new)
    lost = f"; fewer impressions, or ids of histories: {describe_losses(losses)}" if losses else ""
    print_status(f"the counters of version {after} count until {new.clock.text}{compared}{lost}")
    if not new.base:
        return
    command = f"'ranker counters load {repo} --model {name} {FLAG}' replaces them with those of version {after}"
    if url is None:
        print_status(f"with a feature store: it keeps the counters that it has; {command}. --to shows what it holds")
        return
    try:
        store = CounterStore(url, prefix, name)
        state = read_state(store, store.state)
    except RankerError as error:
        print_status(f"the counters in the feature store are unknown: {error}")
        return
    if state is None:
        print_status(f"{store.address} holds no counters of {name}: the service uses those of version {after}")
        return
    held, loaded = (replace(new.clock, until=until).text for until in (state.until, state.loaded_until))
    used = "uses them" if state.until >= new.clock.until else f"uses the newer ones of version {after} instead"
    print_status(
        f"{store.address} keeps counters until {held}, loaded with those until {loaded}: the service {used}. {command}"
    )
