"""What can be wrong with what a user gave us; each message says where and what to do about it."""

from __future__ import annotations


class RankerError(Exception):
    """Any failure that the user can mend; the command line prints it as one line and exits with 1."""


class UsageError(RankerError):
    """A command that cannot mean anything; the command line exits with 2."""


class ConfigError(RankerError):
    """A ranker.toml that does not describe a ranker."""


class LogError(RankerError):
    """A log, side table or run folder that cannot be used as it is."""


class BundleError(RankerError):
    """A bundle or repository that is missing, altered or not understood."""


class OutputError(RankerError):
    """A place that cannot be written, or that holds something already."""


class NotConvergedError(RankerError):
    """A gate whose codes are not all binary, so that it has not chosen its experts yet."""


class RefusedError(RankerError):
    """A model that is worse than the one it would replace; the command line exits with 3."""


class InvalidInputError(RankerError):
    """A table of candidates or rows that does not obey the schema.

    Attributes:
        field: the column or task at fault.
        reason: what is wrong with it.
        row: index of the first bad row, None if the whole column is at fault.
    """

    def __init__(self, field: str, reason: str, row: int | None = None) -> None:
        where = f"'{field}'" if row is None else f"'{field}', row {row}"
        super().__init__(f"{where}: {reason}")
        self.field = field
        self.reason = reason
        self.row = row
