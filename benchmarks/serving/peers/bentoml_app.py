"""BentoML with a look-up of its own, in one worker.

Settings: ``size``, the maximum number of requests per batch, 1 for no batches; ``wait``, the maximum latency in seconds
for which BentoML fills batches. ``bentoml serve`` imports this module, so the arguments are in an environment variable.
"""

import os
import sys
from typing import Any

import bentoml

from benchmarks.serving.peers.matrices import Matrices
from benchmarks.serving.peers.protocol import HOST, PATH, Arguments, to_response

VARIABLE = "PEER_ARGUMENTS"
"""Environment variable with the arguments of the process, one per line."""

if __name__ != "__main__":
    ARGUMENTS = Arguments.parse(os.environ[VARIABLE].splitlines())
    SIZE, WAIT = ARGUMENTS.settings["size"], ARGUMENTS.settings["wait"]
    BATCHES = {"batchable": True, "max_batch_size": SIZE, "max_latency_ms": int(WAIT * 1000)} if SIZE > 1 else {}

    @bentoml.service(workers=1, metrics={"enabled": False}, logging={"access": {"enabled": False}})
    class Ranker:
        """Implements the BentoML service."""

        def __init__(self) -> None:
            self._scorer = Matrices(ARGUMENTS.bundle, ARGUMENTS.matrices)

        @bentoml.api(route=PATH, **BATCHES)
        def rank(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
            """Score the requests of a batch."""
            scores = zip(requests, self._scorer.score(requests), strict=True)
            return [to_response(body, values, self._scorer.tasks) for body, values in scores]


if __name__ == "__main__":
    os.environ[VARIABLE] = "\n".join(sys.argv[1:])
    port = str(Arguments.from_command_line().port)
    command = ["serve", "benchmarks.serving.peers.bentoml_app:Ranker", "--host", HOST, "--port", port]
    os.execv(sys.executable, [sys.executable, "-m", "bentoml", *command])
