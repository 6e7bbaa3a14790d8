"""The same bundle behind LitServe, as one would put it there.

    python -m pipelines.bench.rival SETTINGS PORT

SETTINGS is a ``Rival`` as JSON. Requests are those of ``POST /v1/rank`` with ids alone, answers have the same items.
It looks up, encodes and scores with the code of this repository, which leaves to LitServe what LitServe is for; it
checks no request, says nothing of what is missing, and knows neither objectives nor deadlines.
"""

import json  # LitServe reads annotations as they are: none of them may be put off
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import litserve
import numpy as np
import torch
from fastapi import Request

from pipelines.bench.load import PATH
from pipelines.bench.serving import Server
from ranking.artifacts import bundle
from ranking.encoding.request_batch import RequestBatch
from ranking.schema import Owner
from service.backends.select import select_backend
from service.engine import request as of
from service.engine.request_encoder import RequestEncoder


@dataclass(frozen=True)
class Rival:
    """How LitServe is set up.

    Attributes:
        bundle: folder.
        workers: processes that score.
        threads: of each of them.
        max_batch_size: requests of a batch.
        batch_timeout: seconds that a batch waits to become full.
        fast_queue: ZeroMQ between server and workers instead of a queue of multiprocessing.
    """

    bundle: str
    workers: int
    threads: int
    max_batch_size: int = 1
    batch_timeout: float = 0.0
    fast_queue: bool = False

    def server(self, cores: Sequence[int]) -> Server:
        """Its processes."""
        command = [sys.executable, "-m", "pipelines.bench.rival", json.dumps(asdict(self)), "{port}"]
        return Server(command, "/health", cores, self.threads)


class Ranker(litserve.LitAPI):
    """The four verbs of LitServe, and how requests become a batch.

    Args:
        rival: how it is set up.
    """

    def __init__(self, rival: Rival) -> None:
        super().__init__(max_batch_size=rival.max_batch_size, batch_timeout=rival.batch_timeout, api_path=PATH)
        self._rival = rival

    def setup(self, device: str) -> None:  # noqa: ARG002
        """Loads the bundle, in each worker."""
        torch.set_num_threads(self._rival.threads)
        ranker = bundle.load(Path(self._rival.bundle))
        self._encoder = RequestEncoder(ranker)
        self._runtime = select_backend(ranker, "auto", self._rival.threads)
        self._tasks = ranker.schema.task_names

    def decode_request(self, request: Request) -> tuple[list[Any], RequestBatch]:
        """Ids of the candidates, and their features; the annotation stands for the parsed body."""
        body: Any = request
        ids = body["items"]["id"]
        context = {name: [value] for name, value in body["context"].items()}
        given: dict[Owner, of.RawFeatures] = {
            "user": of.RawFeatures([body["user"]["id"]], {}),
            "context": of.RawFeatures(None, context),
            "item": of.RawFeatures(ids, {}),
        }
        return ids, self._encoder(of.FeatureRequest(given, [len(ids)]))

    def batch(self, inputs: list[tuple[list[Any], RequestBatch]]) -> tuple[list[list[Any]], RequestBatch]:
        """The candidates of all requests."""
        return [ids for ids, _ in inputs], RequestBatch.concat([halves for _, halves in inputs])

    def predict(self, x: tuple[list[list[Any]], RequestBatch]) -> list[tuple[list[Any], Any]]:
        """Ids and scores of each request."""
        ids, halves = x
        scores = self._runtime.scores(halves, self._tasks)
        return list(zip(ids, np.split(scores, np.cumsum([len(some) for some in ids])[:-1]), strict=True))

    def unbatch(self, output: list[tuple[list[Any], Any]]) -> list[tuple[list[Any], Any]]:
        """They are apart already."""
        return output

    def encode_response(self, output: tuple[list[Any], Any]) -> dict[str, Any]:
        """Candidates, best first."""
        ids, scores = output
        order = np.argsort(-scores[:, 0], kind="stable")
        ranked = zip(order, scores[order].tolist(), strict=True)
        items = [
            {"id": ids[i], "score": row[0], "scores": dict(zip(self._tasks, row, strict=True))} for i, row in ranked
        ]
        return {"items": items}


def main(settings: str, port: int) -> None:
    """Serves."""
    rival = Rival(**json.loads(settings))
    server = litserve.LitServer(
        Ranker(rival), accelerator="cpu", workers_per_device=rival.workers, fast_queue=rival.fast_queue
    )
    server.run(host="127.0.0.1", port=port, num_api_servers=1, generate_client_file=False, log_level="warning")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
