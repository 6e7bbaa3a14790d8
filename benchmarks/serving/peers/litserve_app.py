"""LitServe with a look-up of its own.

Settings: ``size``, the maximum number of requests per batch, 1 for no batches; ``wait``, the maximum wait for a full
batch in seconds; ``zeromq``, whether server and worker communicate by ZeroMQ instead of a multiprocessing queue.
"""

from collections.abc import (
    Sequence,
)  # LitServe evaluates annotations at run time, so this module does not postpone them.
from typing import Any

import litserve
import orjson
from fastapi import Request, Response

from benchmarks.serving.peers.matrices import Matrices
from benchmarks.serving.peers.protocol import HOST, PATH, Arguments, Body, Scores, to_response


class RankerApi(litserve.LitAPI):
    """Implements the LitServe API without batches.

    Args:
        arguments: arguments of the process.
        options: options of the batches.
    """

    def __init__(self, arguments: Arguments, **options: Any) -> None:
        super().__init__(api_path=PATH, **options)
        self._arguments = arguments

    def setup(self, device: str) -> None:  # noqa: ARG002
        """Load the matrices; LitServe calls this in the worker."""
        self._scorer = Matrices(self._arguments.bundle, self._arguments.matrices)

    def decode_request(self, request: Request) -> Body:
        """Return the request, which LitServe has parsed."""
        body: Any = request
        return body

    def predict(self, x: Any) -> Any:
        """Score one request; return the request with its scores."""
        return x, self._scorer.score([x])[0]

    def encode_response(self, output: tuple[Body, Scores]) -> Response:
        """Return the candidates with their scores, best first."""
        content = orjson.dumps(to_response(*output, self._scorer.tasks))
        return Response(content, media_type="application/json")


class BatchedRankerApi(RankerApi):
    """Implements the LitServe API with batches, for which LitServe calls other methods."""

    def batch(self, inputs: list[Body]) -> list[Body]:
        """Return the requests of a batch."""
        return inputs

    def predict(self, x: list[Body]) -> list[tuple[Body, Scores]]:
        """Score a batch; return each request with its scores."""
        return list(zip(x, self._scorer.score(x), strict=True))

    def unbatch(self, output: Sequence[tuple[Body, Scores]]) -> Sequence[tuple[Body, Scores]]:
        """Return the output of ``predict``, which is already split by request."""
        return output


def main() -> None:
    """Run the server."""
    arguments = Arguments.from_command_line()
    size, wait = arguments.settings["size"], arguments.settings["wait"]
    batched = {"max_batch_size": size, "batch_timeout": wait}
    api = RankerApi(arguments) if size == 1 else BatchedRankerApi(arguments, **batched)
    server = litserve.LitServer(api, accelerator="cpu", fast_queue=arguments.settings["zeromq"])
    server.run(host=HOST, port=arguments.port, num_api_servers=1, generate_client_file=False, log_level="warning")


if __name__ == "__main__":
    main()
