"""Commands for the service: serve, keys and bench."""

from __future__ import annotations

import argparse
import signal
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

from pipelines.cli.argument_types import days, port, positive_int
from pipelines.cli.command_group import CommandGroup
from pipelines.cli.options import BUNDLE, JSON, REPOSITORY, dump_json
from service.backends.base import BackendName
from service.settings import Settings, describe_setting, load_settings
from service.telemetry.logs import LogFormat

KEY_FILE = "file with the hashes of the API keys of the service"


def add_commands(commands: CommandGroup) -> None:
    """Add the commands."""
    serve = commands.add("serve", "serve a repository over HTTP", _serve_command)
    serve.add_argument("repository", type=Path, metavar="REPOSITORY", help=REPOSITORY)
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    serve.add_argument("--port", type=port, default=8000, help="port to listen on (default: 8000)")
    options: dict[str, dict[str, Any]] = {
        "keys": {"type": Path, "metavar": "FILE"},
        "no_keys": {"action": "store_true", "default": None},
        "operations_port": {"type": port, "metavar": "PORT"},
        "default_model": {"metavar": "MODEL"},
        "remote": {"metavar": "LOCATION"},
        "backend": {"choices": get_args(BackendName)},
        "workers": {"type": positive_int},
        "threads": {"type": positive_int},
        "log_format": {"choices": get_args(LogFormat)},
    }
    for setting, argument in options.items():
        option = "--model" if setting == "default_model" else f"--{setting.replace('_', '-')}"
        serve.add_argument(option, dest=setting, help=describe_setting(setting), **argument)
    serve.add_argument(
        "--settings",
        type=Path,
        metavar="FILE",
        help="TOML file with settings of the service; RANKER_… variables override it",
    )

    actions = commands.group("keys", "create, list and revoke API keys of the service", "actions", "ACTION")
    new_key = actions.add("new", "create a key, print it once and add its hash to the file", _keys_new_command)
    new_key.add_argument("file", type=Path, metavar="FILE", help=KEY_FILE)
    new_key.add_argument("--name", required=True, help="name of the key; every key has a different name")
    new_key.add_argument(
        "--scopes",
        nargs="+",
        required=True,
        choices=["rank", "feedback", "read", "admin"],
        help="operations that it permits",
    )
    new_key.add_argument("--days", type=days, help="days until it expires (default: never)")
    new_key.add_argument(
        "--max-requests-per-second",
        type=float,
        metavar="N",
        help="requests above this rate are rejected with 429; each process counts its own (default: no limit)",
    )
    list_keys = actions.add("list", "print names, scopes and expiry of all keys", _keys_list_command)
    list_keys.add_argument("file", type=Path, metavar="FILE", help=KEY_FILE)
    list_keys.add_argument("--json", action="store_true", help=JSON)
    revoke = actions.add(
        "revoke", "remove a key from the file; it becomes invalid within seconds", _keys_revoke_command
    )
    revoke.add_argument("file", type=Path, metavar="FILE", help=KEY_FILE)
    revoke.add_argument("name", metavar="NAME", help="name of the key")

    bench = commands.add(
        "bench", "measure latency and throughput of the service with a bundle, in about a minute", _bench_command
    )
    bench.add_argument("bundle", type=Path, metavar="BUNDLE", help=BUNDLE)
    bench.add_argument(
        "--threads",
        type=positive_int,
        default=1,
        help="cores of the measured process; load comes from the other cores (default: 1)",
    )
    bench.add_argument(
        "--full", action="store_true", help="measure more sizes in three turns: about a quarter of an hour"
    )
    bench.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE")


def _serve_command(arguments: argparse.Namespace) -> None:
    from service.main import serve

    options = {name: value for name, value in vars(arguments).items() if name in Settings.model_fields}
    serve(load_settings(options, arguments.settings), arguments.host, arguments.port)


def _keys_new_command(arguments: argparse.Namespace) -> None:
    from service.http.auth.keys import create_key

    now = datetime.now(UTC).replace(microsecond=0)
    expires = None if arguments.days is None else now + timedelta(days=arguments.days)
    scopes, rate = tuple(arguments.scopes), arguments.max_requests_per_second
    secret = create_key(arguments.file, arguments.name, scopes, expires, rate)
    print(f"key '{arguments.name}' (it is not shown again; {arguments.file} contains its hash):", file=sys.stderr)
    print(secret)


def _keys_list_command(arguments: argparse.Namespace) -> None:
    from service.http.auth.keys import describe_key, read_keys

    keys = [describe_key(key) for key in read_keys(arguments.file)]
    if arguments.json:
        print(dump_json({"keys": keys}))
        return
    width = max([len(key["name"]) for key in keys], default=0)
    for key in keys:
        expiry = f"{'expired' if key['expired'] else 'expires'} {key['expires']}" if key["expires"] else "never expires"
        rate = key["max_requests_per_second"]
        limit = "" if rate is None else f"  at most {rate:g} requests/s"
        print(f"{key['name']:{width}}  {' '.join(key['scopes'])}  {expiry}{limit}")


def _keys_revoke_command(arguments: argparse.Namespace) -> None:
    from service.http.auth.keys import revoke_key

    revoke_key(arguments.file, arguments.name)


def _bench_command(arguments: argparse.Namespace) -> None:
    from pipelines.bench.command import run

    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops the measured servers, as Ctrl-C does
    try:
        print(run(arguments.bundle, arguments.threads, full=arguments.full, json_file=arguments.json))
    finally:
        signal.signal(signal.SIGTERM, previous)
