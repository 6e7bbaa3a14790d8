"""The ``ranker`` command line: parses arguments, runs a command and prints its result.

Each command imports the modules that it needs when it runs.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pipelines.cli import (
    data_commands,
    loop_commands,
    publishing_commands,
    service_commands,
    store_commands,
    training_commands,
)
from pipelines.cli.argument_types import location
from pipelines.cli.command_group import CommandGroup
from ranking.errors import LeftOutError, QualityGateError, RankerError, UsageError

GROUPS = (
    data_commands,
    training_commands,
    publishing_commands,
    store_commands,
    loop_commands,
    service_commands,
)
"""Modules with commands, in the order of the help."""
SHELLS = ("bash", "zsh", "fish", "tcsh")
"""Shells for which ``ranker completion`` prints a script."""
EXIT_CODES: dict[type[RankerError], int] = {UsageError: 2, QualityGateError: 3, LeftOutError: 4}
"""Exit codes of errors; the exit code of all other errors is 1."""

LOCKED_TRAINING = "pip install --no-deps -r requirements/train.lock (CPU) or requirements/cuda-train.lock (GPU)"
INSTALL_HINTS = {
    **dict.fromkeys(("torch", "onnx", "torchrec", "fbgemm_gpu", "sklearn", "optuna", "duckdb"), LOCKED_TRAINING),
    "ray": "pip install 'dselect-ranker[ray]'",
    "py4j": "pip install 'dselect-ranker[spark]'",
    "redis": "pip install 'dselect-ranker[redis]'",
    "confluent_kafka": "pip install 'dselect-ranker[kafka]'",
    **dict.fromkeys(("alembic", "pg8000", "sqlalchemy"), "pip install 'dselect-ranker[postgresql]'"),
    "jinja2": "pip install 'dselect-ranker[report]'",
}
"""Modules that only some commands need, and how to install them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments without the program name; default: those of the process.

    Returns:
        The exit code: 0 for success, 1 for an error, 2 for a usage error, 3 if a quality gate rejected a model, 4 for
        a result that leaves out damaged input, and 141 (128 + SIGPIPE) if the reader of stdout closed the pipe. For
        invalid arguments, argparse exits with 2.
    """
    arguments, unknown = build_parser().parse_known_args(argv)
    if unknown:  # parse_args would print the usage of all commands
        arguments.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    arguments.argv = ["ranker", *(sys.argv[1:] if argv is None else argv)]
    try:
        arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # for example, the reader is head
        # Python flushes stdout again at exit, which must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except RankerError as error:
        message = str(error).replace("\n", "\\n")  # names of columns may contain line breaks
        print(f"ranker: {message}", file=sys.stderr)
        return next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), 1)
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in INSTALL_HINTS:
            raise
        print(f"ranker: this command needs {package}: {INSTALL_HINTS[package]}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("ranker: interrupted", file=sys.stderr)
        return 1
    return 0


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    top = argparse.ArgumentParser(prog="ranker", description="Train, freeze, publish and serve a DSelect-k ranker.")
    top.add_argument("--version", action=_Version, help="print the version and exit")
    commands = CommandGroup(top, "commands", "COMMAND")
    for module in GROUPS:
        module.add_commands(commands)
    completion = commands.add("completion", "print a completion script for a shell", _completion_command)
    completion.add_argument("shell", choices=SHELLS, help="shell that loads the script")
    return top


def _completion_command(arguments: argparse.Namespace) -> None:
    import shtab

    parser = build_parser()
    for action in _walk_actions(parser):
        if action.type in (Path, location):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, arguments.shell))


def _walk_actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a parser and of all its subcommands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for subparser in action.choices.values():
                yield from _walk_actions(subparser)


class _Version(argparse.Action):
    """Prints the version and exits; reads the package metadata only when it is used."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, **options)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"{parser.prog} {version('dselect-ranker')}")
        parser.exit()
