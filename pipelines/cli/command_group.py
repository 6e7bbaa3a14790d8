"""Adds commands to the parser of the ``ranker`` command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

Run = Callable[[argparse.Namespace], None]
"""Runs a command and prints its result."""


class CommandGroup:
    """Commands that are selected by their name, such as those of ``ranker`` or of ``ranker keys``.

    The selected command sets ``run`` to its function and ``parser`` to its parser.

    Args:
        parser: parser of the group.
        title: heading of the commands in the help of the group.
        metavar: name of a command in the help.
    """

    def __init__(self, parser: argparse.ArgumentParser, title: str | None, metavar: str) -> None:
        options: dict[str, Any] = {} if title is None else {"title": title}
        self._parsers = parser.add_subparsers(required=True, metavar=metavar, **options)

    def add(self, name: str, text: str, run: Run) -> argparse.ArgumentParser:
        """Add a command; ``text`` is its help."""
        parser: argparse.ArgumentParser = self._parsers.add_parser(name, help=text, description=text)
        parser.set_defaults(run=run, parser=parser)
        return parser

    def group(self, name: str, text: str, title: str | None, metavar: str) -> CommandGroup:
        """Add a group of commands; see the class for ``title`` and ``metavar``."""
        return CommandGroup(self._parsers.add_parser(name, help=text), title, metavar)
