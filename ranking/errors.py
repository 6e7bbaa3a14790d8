"""Errors that users can fix; each message says where the problem is and how to fix it."""

from __future__ import annotations


class RankerError(Exception):
    """Base of all errors that a user can fix; the command line prints it as one line and exits with 1."""


class UsageError(RankerError):
    """An invalid combination of command-line arguments; the command line exits with 2."""


class ConfigError(RankerError):
    """An invalid configuration file."""


class LogError(RankerError):
    """An unusable log, side table or run folder."""


class BundleError(RankerError):
    """A bundle or repository that is missing, altered or of an unknown format."""


class OutputError(RankerError):
    """An output path that cannot be written or that already exists."""


class NotConvergedError(RankerError):
    """A gate whose codes are not all binary, so that its selection is not final."""


class QualityGateError(RankerError):
    """A model that is worse than the one it would replace; the command line exits with 3."""


class LeftOutError(RankerError):
    """A result without the damaged parts of its input; the command line exits with 4."""


class InvalidInputError(RankerError):
    """A table of candidates or log rows that violates the schema.

    Attributes:
        field: name of the invalid column or task.
        reason: description of the problem.
        row: index of the first invalid row; None if the whole column is invalid.
    """

    def __init__(self, field: str, reason: str, row: int | None = None) -> None:
        where = f"'{field}'" if row is None else f"'{field}', row {row}"
        super().__init__(f"{where}: {reason}")
        self.field = field
        self.reason = reason
        self.row = row


def single_line(error: BaseException) -> str:
    """Return the text of an error on one line."""
    return " ".join(str(error).split())
