"""Commands for the feature store and for what was served: load, counters, collect, join and forget."""

from __future__ import annotations

import argparse
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.cli.output import dump_json
from ranking.errors import LeftOutError, OutputError, UsageError

if TYPE_CHECKING:
    from pipelines.config.uri import Uris


def load_command(arguments: argparse.Namespace) -> None:
    """Run ``ranker items load`` and ``ranker users load``."""
    from pipelines.jobs.load_features import load_features
    from ranking.artifacts import bundle

    url = _store(arguments)
    ranker = bundle.load(arguments.bundle)
    model = ranker.schema.name if arguments.model is None else arguments.model
    prefix, ttl = arguments.prefix, arguments.ttl
    print(dump_json(load_features(arguments.rows, arguments.owner, ranker, model, url, prefix, ttl)))


def counters_load_command(arguments: argparse.Namespace) -> None:
    """Run ``ranker counters load``."""
    from pipelines.jobs.load_counters import load_counters

    url = _store(arguments)
    options = {"allow_poorer_counters": arguments.allow_poorer_counters}
    print(dump_json(load_counters(arguments.repository, url, arguments.model, arguments.prefix, **options)))


def counters_apply_command(arguments: argparse.Namespace) -> None:
    """Run ``ranker counters apply``."""
    from pipelines.jobs.apply_counters import apply_log

    url = _store(arguments)
    print(dump_json(apply_log(arguments.logs, arguments.repository, url, arguments.model, arguments.prefix)))


def counters_check_command(arguments: argparse.Namespace) -> None:
    """Run ``ranker counters check``."""
    from pipelines.jobs.check_counters import check_counters, describe_missing

    result = check_counters(arguments.repository, _store(arguments), arguments.model, arguments.prefix)
    print(dump_json(result))
    if message := describe_missing(result):
        raise OutputError(f"{result['to']} {message}")


def counters_follow_command(arguments: argparse.Namespace) -> None:
    """Run ``ranker counters follow``."""
    from pipelines.console import print_status
    from pipelines.jobs.follow_counters import Follower, FollowMetrics, follow
    from pipelines.jobs.followed_version import FollowOptions
    from pipelines.loop.sources import LoopSources

    sources = LoopSources(arguments.served, arguments.feedback, arguments.repository, arguments.model)
    if not arguments.every:
        raise UsageError("--every 0s: a step needs time; choose 1s or more")
    if arguments.state is not None:
        print_status(f"--state is ignored: the store keeps what was followed; delete {arguments.state}")
    options = FollowOptions(sources, _store(arguments), arguments.prefix, arguments.window)
    if arguments.once:
        result = Follower(options).step()
        print(dump_json(result))
        require_complete(result["left_out"])
        return
    follow(options, arguments.every, FollowMetrics(arguments.metrics_port, arguments.metrics_host), _stop_on_signals())


def forget_command(arguments: argparse.Namespace) -> None:
    """Run ``ranker forget``."""
    from pipelines.console import print_status
    from pipelines.jobs.forget import forget, forget_in_store, found_any, read_user_key
    from pipelines.loop.folder_locks import lock_folders

    folders = {"served": arguments.served, "feedback": arguments.feedback, "logs": arguments.log}
    if not any(folders.values()) and arguments.repository is None:
        raise UsageError("name what to remove the user from: --served, --feedback, --log, or --repository with --to")
    key = None if arguments.user_key_file is None else read_user_key(arguments.user_key_file)
    with lock_folders([path for path in (arguments.served, arguments.feedback, *arguments.log) if path is not None]):
        removed = forget(arguments.user, **folders, user_column=arguments.user_column, user_key=key)
        if arguments.repository is not None:
            store = arguments.repository, _store(arguments), arguments.model, arguments.prefix
            removed["store_keys"] = forget_in_store(arguments.user, *store)
    print(dump_json(removed))
    if not found_any(removed):
        hashed = "" if key is not None else ", or --user-key-file if the service hashes ids"
        print_status(f"nothing of user '{arguments.user}' was found: check the id{hashed}")
    if removed["unreadable"]:
        raise LeftOutError(
            "damaged files may contain data of the user: restore or delete them, then repeat the command; "
            + _first_of(removed["unreadable"])
        )


def collect_command(arguments: argparse.Namespace) -> None:
    """Run ``ranker collect``."""
    from pipelines.jobs.collect import collect

    stop = _stop_on_signals() if arguments.follow else None
    print(dump_json({"files": collect(arguments.topic, arguments.to, arguments.group, stop)}))


def join_command(arguments: argparse.Namespace) -> None:
    """Run ``ranker join``."""
    from pipelines.jobs.join import join
    from pipelines.loop.sources import LoopSources

    options = {name: getattr(arguments, name) for name in ("served", "feedback", "repository", "model", "shown")}
    counts = join(LoopSources(**options), arguments.out, arguments.window, arguments.until)
    print(dump_json(counts.to_json()) if arguments.json else counts.to_text())
    require_complete(counts.left_out)


def require_complete(left_out: Sequence[str]) -> None:
    """Fail if damaged input was left out, see ``JoinCounts``; call this when everything else is done.

    Raises:
        LeftOutError: some was.
    """
    if left_out:
        raise LeftOutError(f"damaged input was left out: {_first_of(left_out)}")


def _first_of(messages: Sequence[str]) -> str:
    """Return the first message, and how many more were printed before."""
    more = f"; and {len(messages) - 1:,} more, see above" if len(messages) > 1 else ""
    return f"{messages[0]}{more}"


def join_before(arguments: argparse.Namespace, model: str, logs: Uris) -> Sequence[str]:
    """Add what was served to the last location of the log of ``ranker daily``, if the arguments name the folders.

    Returns:
        Messages about damaged input that was left out.

    Raises:
        UsageError: only some of the arguments are given, or the location is not a local folder of ``ranker join``.
    """
    given = [value is not None for value in (arguments.served, arguments.feedback, arguments.window)]
    if not any(given):
        return ()
    if not all(given):
        raise UsageError("--served, --feedback and --window belong together: give all of them, or none")
    from pipelines.config.uri import redact_uri, split_uris
    from pipelines.console import print_status
    from pipelines.jobs.join import join
    from pipelines.loop.sources import LoopSources
    from pipelines.loop.state import is_joined_log

    log = split_uris(logs)[-1]
    if not isinstance(log, Path) or not is_joined_log(log):
        raise UsageError(
            f"{redact_uri(log)}: --served adds rows to the last folder of logs.path, which must be a local one for "
            "'ranker join' alone; add such a folder, for example path = ['log', 'joined']"
        )
    sources = LoopSources(arguments.served, arguments.feedback, arguments.repository, model)
    counts = join(sources, log, arguments.window)
    print_status(counts.to_text())
    return counts.left_out


def _stop_on_signals() -> threading.Event:
    """Return an event that SIGTERM and SIGINT set."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def _store(arguments: argparse.Namespace) -> str:
    """Return the address of the feature store.

    Raises:
        UsageError: neither ``--to`` nor the variable gives one.
    """
    if arguments.to is None:
        raise UsageError("name the store with --to redis://HOST:PORT/DB or the variable RANKER_STORE")
    return str(arguments.to)
