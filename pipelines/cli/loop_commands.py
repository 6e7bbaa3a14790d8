"""Commands for what was served: forget, collect and join."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipelines.cli.argument_types import duration, log_source, moment
from pipelines.cli.command_group import CommandGroup
from pipelines.cli.options import (
    JSON,
    REPOSITORY,
    add_loop_folders,
    add_store_and_model,
    dump_json,
    first_of,
    require_complete,
    stop_on_signals,
    store_url,
)
from ranking.artifacts.kafka_address import KafkaAddress
from ranking.artifacts.object_store import FORMS
from ranking.errors import LeftOutError, UsageError
from ranking.served_log.schema import SHOWN


def add_commands(commands: CommandGroup) -> None:
    """Add the commands."""
    forget = commands.add("forget", "remove the data of one user from logs and the feature store", _forget_command)
    forget.add_argument("user", metavar="USER", help="id of the user")
    forget.add_argument("--served", type=Path, metavar="DIR", help="folder of the served log")
    forget.add_argument("--feedback", type=Path, metavar="DIR", help="folder of feedback; needs --served")
    forget.add_argument(
        "--log", type=Path, action="append", default=[], metavar="LOG", help="Parquet file or folder; may be repeated"
    )
    forget.add_argument(
        "--user-column", default="user_id", metavar="NAME", help="column of the user id in --log (default: user_id)"
    )
    forget.add_argument(
        "--user-key-file",
        type=Path,
        metavar="FILE",
        help="file with the key that hashes the user ids of the served log (the setting served_log_user_key)",
    )
    forget.add_argument("--repository", type=Path, metavar="REPOSITORY", help=f"{REPOSITORY}; for --to")
    add_store_and_model(forget, "model whose keys are removed from the store (default: all models of the repository)")

    collect = commands.add(
        "collect", "move a served log or feedback from Kafka or object storage to a folder", _collect_command
    )
    collect.add_argument(
        "source",
        type=log_source,
        metavar="SOURCE",
        help=f"kafka://HOST:PORT[,HOST:PORT]/TOPIC, {FORMS}; setting served_log or feedback_dir. Copied objects are "
        "deleted",
    )
    collect.add_argument("--to", type=Path, required=True, metavar="DIR", help="folder of the files, for 'ranker join'")
    collect.add_argument(
        "--group",
        metavar="NAME",
        help="consumer group, for which the Kafka cluster keeps the position (default: ranker-collect)",
    )
    collect.add_argument("--follow", action="store_true", help="wait for new files")

    join = commands.add(
        "join", "attribute feedback to served requests, and add the rows to a log for 'ranker train'", _join_command
    )
    add_loop_folders(join, required=True)
    join.add_argument(
        "--window",
        type=duration,
        required=True,
        metavar="DURATION",
        help="time after an impression in which events count, such as 24h; its rows are written afterwards",
    )
    join.add_argument("--out", type=Path, required=True, metavar="LOG", help="folder of the log; rows are added to it")
    join.add_argument(
        "--until",
        type=moment,
        metavar="TIME",
        help="write the rows of windows that have closed by this time (default: now, or the time of the oldest "
        "unfinished file of feedback)",
    )
    join.add_argument(
        "--shown",
        default=SHOWN,
        metavar="NAME",
        help="label that marks the items that were shown; the other items of such requests give no rows (default: "
        f"{SHOWN})",
    )
    join.add_argument("--model", help="model whose requests to join (default: the only one in the served log)")
    join.add_argument(
        "--repository", type=Path, help="repository of the versions (default: the one that the service named)"
    )
    join.add_argument("--json", action="store_true", help=JSON)


def _forget_command(arguments: argparse.Namespace) -> None:
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
            store = arguments.repository, store_url(arguments), arguments.model, arguments.prefix
            removed["store_keys"] = forget_in_store(arguments.user, *store)
    print(dump_json(removed))
    if not found_any(removed):
        hashed = "" if key is not None else ", or --user-key-file if the service hashes ids"
        print_status(f"nothing of user '{arguments.user}' was found: check the id{hashed}")
    if removed["unreadable"]:
        raise LeftOutError(
            "damaged files may contain data of the user: restore or delete them, then repeat the command; "
            + first_of(removed["unreadable"])
        )


def _collect_command(arguments: argparse.Namespace) -> None:
    source, stop = arguments.source, stop_on_signals() if arguments.follow else None
    if isinstance(source, KafkaAddress):
        from pipelines.jobs.collect import collect

        files = collect(source, arguments.to, arguments.group or "ranker-collect", stop)
    else:
        from pipelines.jobs.collect_objects import collect_objects

        if arguments.group is not None:
            raise UsageError("--group is for Kafka only")
        files = collect_objects(source, arguments.to, stop)
    print(dump_json({"files": files}))


def _join_command(arguments: argparse.Namespace) -> None:
    from pipelines.jobs.join import join
    from pipelines.loop.sources import LoopSources

    options = {name: getattr(arguments, name) for name in ("served", "feedback", "repository", "model", "shown")}
    counts = join(LoopSources(**options), arguments.out, arguments.window, arguments.until)
    print(dump_json(counts.to_json()) if arguments.json else counts.to_text())
    require_complete(counts.left_out)
