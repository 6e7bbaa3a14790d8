"""Ray Serve with a look-up of its own, in one replica.

Settings: ``size``, the maximum number of requests per batch, 1 for no batches; ``wait``, the maximum wait for a full
batch in seconds.
"""

import signal
from types import FrameType

import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

from benchmarks.serving.peers.matrices import Matrices
from benchmarks.serving.peers.protocol import HEALTH, HOST, Arguments, answers

MAX_REQUESTS = 100
"""Maximum number of requests in the replica, more than the clients of the load."""


def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    """Stop all processes of Ray (signal handler)."""
    ray.shutdown()
    raise SystemExit(0)


def main() -> None:
    """Run the server."""
    arguments = Arguments.from_command_line()
    size, wait = arguments.settings["size"], arguments.settings["wait"]

    @serve.deployment(max_ongoing_requests=MAX_REQUESTS, ray_actor_options={"num_cpus": 0})
    class Ranker:
        """Implements the deployment."""

        def __init__(self) -> None:
            self._scorer = Matrices(arguments.bundle, arguments.matrices)

        async def __call__(self, request: Request) -> Response:
            """Answer a request."""
            if request.url.path == HEALTH:
                return Response()
            data = await request.body()
            content = answers(self._scorer, [data])[0] if size == 1 else await self.rank(data)
            return Response(content, media_type="application/json")

        @serve.batch(max_batch_size=max(size, 2), batch_wait_timeout_s=wait)
        async def rank(self, data: list[bytes]) -> list[bytes]:
            """Score the requests of a batch."""
            return answers(self._scorer, data)

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False)
    serve.start(http_options={"host": HOST, "port": arguments.port})
    signal.signal(signal.SIGTERM, stop)
    serve.run(Ranker.bind(), route_prefix="/")  # type: ignore[attr-defined]  # added by the decorator
    signal.pause()


if __name__ == "__main__":
    main()
