"""What a request turned out to be about, for whoever tells of it when it has been answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.types import Scope


@dataclass(slots=True)
class RequestInfo:
    """Of a ranking request; under ``subject`` in the state of its scope once it is known.

    Attributes:
        model: that answers.
        version: of the model.
        candidates: how many are to be ranked; None until the request was read.
        tasks: that were asked for; None: all.
    """

    model: str
    version: str
    candidates: int | None = None
    tasks: Sequence[str] | None = None


def request_fields(scope: Scope, status: int) -> dict[str, Any]:
    """What logs and traces may say of a request: no ids of users or items, no keys."""
    subject: RequestInfo | None = scope["state"].get("subject")
    told: dict[str, Any] = {"status": status}
    if subject is not None:
        told |= {"model": subject.model, "version": subject.version}
        if subject.candidates is not None:
            told["candidates"] = subject.candidates
            told["tasks"] = "all" if subject.tasks is None else list(subject.tasks)
    return told
