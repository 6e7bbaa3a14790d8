"""MLServer with a look-up of its own, in one process, with requests by the Open Inference Protocol.

Settings: ``size``, the maximum number of requests per batch, 1 for no batches; ``wait``, the maximum wait for a full
batch in seconds.
"""

from __future__ import annotations

import asyncio

from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.types import InferenceRequest, InferenceResponse, ResponseOutput

from benchmarks.serving.peers.forms import INPUT, MODEL, OUTPUT
from benchmarks.serving.peers.matrices import Matrices
from benchmarks.serving.peers.protocol import HOST, Arguments, answers

ARGUMENTS = Arguments.from_command_line()


class RankerModel(MLModel):
    """Implements the MLServer API; requests and responses are texts of JSON."""

    async def load(self) -> bool:
        """Load the matrices."""
        self._scorer = Matrices(ARGUMENTS.bundle, ARGUMENTS.matrices)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Score the requests of a batch."""
        (texts,) = [list(tensor.data) for tensor in payload.inputs if tensor.name == INPUT]
        data = [content.decode() for content in answers(self._scorer, texts)]
        output = ResponseOutput(name=OUTPUT, shape=[len(data), 1], datatype="BYTES", data=data)
        return InferenceResponse(model_name=self.name, outputs=[output])


async def main() -> None:
    """Run the server."""
    batches = {}
    if ARGUMENTS.settings["size"] > 1:
        batches = {"max_batch_size": ARGUMENTS.settings["size"], "max_batch_time": ARGUMENTS.settings["wait"]}
    server = MLServer(
        Settings(
            host=HOST,
            http_port=ARGUMENTS.port,
            grpc_port=0,
            metrics_endpoint=None,
            parallel_workers=0,
            debug=False,
            use_structured_logging=False,
        )
    )
    await server.start([ModelSettings(name=MODEL, implementation=RankerModel, **batches)])


if __name__ == "__main__":
    asyncio.run(main())
