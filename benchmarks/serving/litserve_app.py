"""Serve a bundle with LitServe.

    python -m benchmarks.serving.litserve_app SETTINGS PORT

SETTINGS is a ``LitServeSettings`` as JSON. Requests are those of ``POST /v1/rank`` with ids only, and responses have
the same items. Lookup, encoding and scoring use the code of this repository, so that only the serving layer differs.
The application does not validate requests, does not list missing features, and has no objectives or deadlines.
"""

import json  # LitServe evaluates annotations at run time, so this module does not postpone them.
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
from pipelines.bench.server_process import ServerProcess
from ranking.artifacts import bundle
from ranking.encoding.request_batch import RequestBatch
from ranking.schema import Owner
from service.backends.select import select_backend
from service.engine.request import FeatureRequest, RawFeatures
from service.engine.request_encoder import RequestEncoder


@dataclass(frozen=True)
class LitServeSettings:
    """Settings of LitServe.

    Attributes:
        bundle: folder of the bundle.
        workers: number of scoring processes.
        threads: threads per worker.
        max_batch_size: maximum number of requests per batch.
        batch_timeout: maximum wait for a full batch, in seconds.
        fast_queue: use ZeroMQ between server and workers instead of a multiprocessing queue.
    """

    bundle: str
    workers: int
    threads: int
    max_batch_size: int = 1
    batch_timeout: float = 0.0
    fast_queue: bool = False

    def server(self, cores: Sequence[int]) -> ServerProcess:
        """Create the server process."""
        command = [sys.executable, "-m", "benchmarks.serving.litserve_app", json.dumps(asdict(self)), "{port}"]
        return ServerProcess(command, "/health", cores, self.threads)


class RankerApi(litserve.LitAPI):
    """Implements the LitServe API for a bundle.

    Args:
        settings: settings of LitServe.
    """

    def __init__(self, settings: LitServeSettings) -> None:
        super().__init__(max_batch_size=settings.max_batch_size, batch_timeout=settings.batch_timeout, api_path=PATH)
        self._settings = settings

    def setup(self, device: str) -> None:  # noqa: ARG002
        """Load the bundle; LitServe calls this in each worker."""
        torch.set_num_threads(self._settings.threads)
        ranker = bundle.load(Path(self._settings.bundle))
        self._encoder = RequestEncoder(ranker)
        self._backend = select_backend(ranker, "auto", self._settings.threads)
        self._tasks = ranker.schema.task_names

    def decode_request(self, request: Request) -> tuple[list[Any], RequestBatch]:
        """Return the ids and the encoded features of the candidates. LitServe passes the parsed body."""
        body: Any = request
        ids = body["items"]["id"]
        context = {name: [value] for name, value in body["context"].items()}
        features: dict[Owner, RawFeatures] = {
            "user": RawFeatures([body["user"]["id"]], {}),
            "context": RawFeatures(None, context),
            "item": RawFeatures(ids, {}),
        }
        return ids, self._encoder(FeatureRequest(features, [len(ids)]))

    def batch(self, inputs: list[tuple[list[Any], RequestBatch]]) -> tuple[list[list[Any]], RequestBatch]:
        """Concatenate the candidates of all requests."""
        return [ids for ids, _ in inputs], RequestBatch.concat([batch for _, batch in inputs])

    def predict(self, x: tuple[list[list[Any]], RequestBatch]) -> list[tuple[list[Any], Any]]:
        """Score a batch; return the ids and scores of each request."""
        id_lists, batch = x
        scores = self._backend.scores(batch, self._tasks)
        return list(zip(id_lists, np.split(scores, np.cumsum([len(ids) for ids in id_lists])[:-1]), strict=True))

    def unbatch(self, output: list[tuple[list[Any], Any]]) -> list[tuple[list[Any], Any]]:
        """Return the output of ``predict``, which is already split by request."""
        return output

    def encode_response(self, output: tuple[list[Any], Any]) -> dict[str, Any]:
        """Return the candidates with their scores, best first."""
        ids, scores = output
        order = np.argsort(-scores[:, 0], kind="stable")
        ranked = zip(order, scores[order].tolist(), strict=True)
        items = [
            {"id": ids[i], "score": row[0], "scores": dict(zip(self._tasks, row, strict=True))} for i, row in ranked
        ]
        return {"items": items}


def main(settings_json: str, port: int) -> None:
    """Run the server."""
    settings = LitServeSettings(**json.loads(settings_json))
    server = litserve.LitServer(
        RankerApi(settings), accelerator="cpu", workers_per_device=settings.workers, fast_queue=settings.fast_queue
    )
    server.run(host="127.0.0.1", port=port, num_api_servers=1, generate_client_file=False, log_level="warning")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
