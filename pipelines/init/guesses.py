"""Guesses with their reasons: the parts of a configuration before it is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pipelines.init.conversions import Convert, Make
from ranking.schema import Owner


@dataclass(frozen=True)
class ColumnGuess:
    """Column of a role such as the time or the user id.

    Attributes:
        column: name of the column.
        reason: why it was chosen, for a comment.
        unsure: what else it could be; None if there is little doubt.
        convert: conversion that the column needs; None if it can be read as it is.
        make: values of a column that the log does not have; None if it has it.
    """

    column: str
    reason: str
    unsure: str | None = None
    convert: Convert | None = None
    make: Make | None = None


@dataclass(frozen=True)
class OwnerGuess:
    """Entity that a column describes.

    Attributes:
        owner: user, item or context.
        reason: why, for a comment.
        sure: whether the log has enough repeated ids to tell.
        constant: whether the column has the same value in all rows of the entity.
    """

    owner: Owner
    reason: str
    sure: bool
    constant: bool = False


@dataclass(frozen=True)
class FeatureGuess:
    """A feature.

    Attributes:
        column: its column.
        kind: its kind.
        owner: its owner.
        reason: why it has this kind, for a comment.
        options: further settings.
        unsure: why it may be wrong; None if there is little doubt.
        convert: conversion that the column needs.
    """

    column: str
    kind: str
    owner: OwnerGuess
    reason: str
    options: dict[str, Any] = field(default_factory=dict)
    unsure: str | None = None
    convert: Convert | None = None


@dataclass(frozen=True)
class TaskGuess:
    """A task.

    Attributes:
        column: its label column.
        kind: binary or regression.
        reason: why it is a task, for a comment.
        options: further settings.
        unsure: why it may be wrong; None if there is little doubt.
        negative: whether items that cause this label should be ranked lower.
        convert: conversion that the label needs.
    """

    column: str
    kind: str
    reason: str
    options: dict[str, Any] = field(default_factory=dict)
    unsure: str | None = None
    negative: bool = False
    convert: Convert | None = None


@dataclass(frozen=True)
class LeftOut:
    """A column that the configuration does not read.

    Attributes:
        column: name of the column.
        reason: why, for a comment.
        leak: whether it seems to be known only after the impression.
    """

    column: str
    reason: str
    leak: bool = False


FindOwner = Callable[[str], OwnerGuess]
"""Returns the owner of a column."""
