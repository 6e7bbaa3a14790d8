"""Arguments that several commands share, their results, and what they need."""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.cli.argument_types import fraction, positive_int, store_address
from ranking.artifacts.feature_store_keys import DEFAULT_KEY_PREFIX
from ranking.errors import LeftOutError, UsageError

if TYPE_CHECKING:
    from pipelines.engines import Engine

CONFIG = "path of the ranker.toml"
RUN = "folder written by 'ranker train'"
NEW_FOLDER = "new folder"
BUNDLE = "folder written by 'ranker freeze', or a published version"
REPOSITORY = "folder of published models"
JSON = "print the result as JSON"
EMBEDDINGS = ("float32", "float16", "int8")
"""Types of the rows of embedding tables in a bundle."""


def add_bad_row_limit(command: argparse.ArgumentParser) -> None:
    """Add the largest share of bad rows; see ``bad_row_limit``."""
    command.add_argument(
        "--max-bad-rows",
        type=fraction,
        metavar="SHARE",
        help="fail if more than this share of the rows is bad (default: logs.max_bad_rows, 0.01)",
    )


def bad_row_limit(arguments: argparse.Namespace) -> list[str]:
    """Return ``--max-bad-rows`` as an override of the configuration."""
    return [] if arguments.max_bad_rows is None else [f"logs.max_bad_rows={arguments.max_bad_rows}"]


def add_overrides(command: argparse.ArgumentParser) -> None:
    """Add overrides of the configuration."""
    command.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="KEY=VALUE",
        help="override a setting, such as training.epochs=3; may be repeated",
    )


def add_embeddings(parser: argparse.ArgumentParser) -> None:
    """Add the type of the rows of embedding tables."""
    parser.add_argument(
        "--embeddings",
        choices=EMBEDDINGS,
        default=EMBEDDINGS[0],
        help="type of the rows of embedding tables in the bundle; float16 takes half the memory of float32, int8 less "
        "(default: float32)",
    )


def add_counter_flag(parser: argparse.ArgumentParser, *, or_older: bool = False) -> None:
    """Add the flag of commands that replace counters; ``or_older``: it accepts older counters, too."""
    parser.add_argument(
        "--allow-poorer-counters",
        action="store_true",
        help="continue even if the counters lack more than a tenth of the impressions of those that they replace"
        f"{', or are older' if or_older else ''} (default: do not)",
    )


def add_loop_folders(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add the folders that the service writes."""
    parser.add_argument(
        "--served", type=Path, required=required, metavar="DIR", help="served log; setting served_log of the service"
    )
    parser.add_argument(
        "--feedback", type=Path, required=required, metavar="DIR", help="feedback; setting feedback_dir of the service"
    )


def add_engine(parser: argparse.ArgumentParser, work: str = "score the files of the log") -> None:
    """Add the engine that does a part of the command's work."""
    engines = parser.add_mutually_exclusive_group()
    engines.add_argument(
        "--workers",
        type=positive_int,
        metavar="N",
        help=f"{work} in N processes (default: in one)",
    )
    engines.add_argument(
        "--engine",
        choices=["ray", "spark"],
        help=f"{work} on a cluster, whose workers see all folders under the same paths",
    )


def chosen_engine(arguments: argparse.Namespace) -> Engine | None:
    """Return the engine that the arguments of ``add_engine`` choose; None for this process."""
    from pipelines.engines import run_in_processes, run_with_ray, run_with_spark

    if arguments.engine is not None:
        import_module({"ray": "ray", "spark": "py4j"}[arguments.engine])  # reported before a folder is created
        return {"ray": run_with_ray, "spark": run_with_spark}[arguments.engine]
    return None if arguments.workers is None else partial(run_in_processes, arguments.workers)


def add_store(parser: argparse.ArgumentParser) -> None:
    """Add the address and the prefix of the keys in a store."""
    parser.add_argument(
        "--to",
        type=store_address,
        metavar="URL",
        default=os.environ.get("RANKER_STORE"),
        help="address of the store, such as redis://HOST:PORT/DB (default: the variable RANKER_STORE)",
    )
    parser.add_argument(
        "--prefix",
        default=DEFAULT_KEY_PREFIX,
        help=f"prefix of the keys; the setting store_prefix of the service (default: {DEFAULT_KEY_PREFIX})",
    )


def add_store_and_model(parser: argparse.ArgumentParser, model: str) -> None:
    """Add the address, the model and the prefix of the keys in a store; ``model`` is the help of ``--model``."""
    parser.add_argument("--model", help=model)
    add_store(parser)


def store_url(arguments: argparse.Namespace) -> str:
    """Return the address of the feature store.

    Raises:
        UsageError: neither ``--to`` nor the variable gives one.
    """
    if arguments.to is None:
        raise UsageError("name the store with --to redis://HOST:PORT/DB or the variable RANKER_STORE")
    return str(arguments.to)


def require_complete(left_out: Sequence[str]) -> None:
    """Fail if damaged input was left out, see ``JoinCounts``; call this when everything else is done.

    Raises:
        LeftOutError: some was.
    """
    if left_out:
        raise LeftOutError(f"damaged input was left out: {first_of(left_out)}")


def first_of(messages: Sequence[str]) -> str:
    """Return the first message, and how many more were printed before."""
    more = f"; and {len(messages) - 1:,} more, see above" if len(messages) > 1 else ""
    return f"{messages[0]}{more}"


def stop_on_signals() -> threading.Event:
    """Return an event that SIGTERM and SIGINT set."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def dump_json(data: dict[str, Any]) -> str:
    """Return a result as JSON text."""
    return json.dumps(data, indent=2)
