"""A part of the report: its heading, and either what it shows or why it is left out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Section:
    """One section.

    Attributes:
        name: its anchor, and its template's name.
        title: its heading.
        about: how to read it, a sentence or two.
        content: what its template shows.
        lack: why it is left out and what to do about that; None if it is there.
    """

    name: str
    title: str
    about: str = ""
    content: dict[str, Any] = field(default_factory=dict)
    lack: str | None = None
