"""Command line, requests and responses that all peers share. Needs NumPy and orjson only.

A request is the body of ``POST /v1/rank`` with ids only. A response has the same items as that of the service, without
the fields that only the service fills.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
import orjson

HOST, PATH = "127.0.0.1", "/v1/rank"
"""Address and path of the load generator."""
HEALTH = "/health"
"""Path that returns status 200 once a peer is ready."""

Body = dict[str, Any]
"""Parsed body of a request."""
Scores = npt.NDArray[np.float32]
"""Scores [candidates, tasks]."""


class Scorer(Protocol):
    """Scores parsed requests."""

    @property
    def tasks(self) -> Sequence[str]:
        """Names of the columns of the scores."""
        ...

    def score(self, bodies: Sequence[Body]) -> list[Scores]:
        """Return the scores of each request; all requests form one batch."""
        ...


@dataclass(frozen=True)
class Arguments:
    """Arguments of a peer's process: ``BUNDLE MATRICES SETTINGS PORT``.

    Attributes:
        bundle: folder of the bundle.
        matrices: folder that ``matrix_files.write_matrices`` wrote.
        settings: settings of this peer, see ``catalog``.
        port: TCP port to listen on.
    """

    bundle: Path
    matrices: Path
    settings: dict[str, Any]
    port: int

    @classmethod
    def from_command_line(cls) -> Self:
        """Parse ``sys.argv``."""
        return cls.parse(sys.argv[1:])

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> Self:
        """Parse the arguments."""
        bundle, matrices, settings, port = arguments
        return cls(Path(bundle), Path(matrices), json.loads(settings), int(port))


def candidate_ids(body: Body) -> list[Any]:
    """Return the ids of the candidates."""
    ids: list[Any] = body["items"]["id"]
    return ids


def to_response(body: Body, scores: Scores, tasks: Sequence[str]) -> dict[str, Any]:
    """Return the candidates with their scores, the best by the first task first."""
    ids = candidate_ids(body)
    order = np.argsort(-scores[:, 0], kind="stable")
    ranked = zip(order.tolist(), scores[order].tolist(), strict=True)
    return {
        "items": [{"id": ids[i], "score": row[0], "scores": dict(zip(tasks, row, strict=True))} for i, row in ranked]
    }


def answers(scorer: Scorer, requests: Sequence[bytes | str]) -> list[bytes]:
    """Parse requests, score them as one batch, and write their responses."""
    bodies = [orjson.loads(data) for data in requests]
    scores = zip(bodies, scorer.score(bodies), strict=True)
    return [orjson.dumps(to_response(body, values, scorer.tasks)) for body, values in scores]


def answer(scorer: Scorer, request: bytes) -> bytes:
    """Return the response of a single request."""
    (response,) = answers(scorer, [request])
    return response
