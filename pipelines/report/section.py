"""One section of the report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Section:
    """A section with its heading, and either its content or the reason why it is omitted.

    Attributes:
        name: anchor of the section and name of its template.
        title: heading.
        about: introduction in one or two sentences.
        content: variables of the template.
        omitted: why the section is omitted and how to get it; None if it is shown.
    """

    name: str
    title: str
    about: str = ""
    content: dict[str, Any] = field(default_factory=dict)
    omitted: str | None = None
