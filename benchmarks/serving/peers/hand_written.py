"""FastAPI and ONNX Runtime with a look-up of its own, one request at a time: what one would write by hand.

Settings: ``threads``, whether requests are scored in the thread pool instead of the thread of the event loop;
``freeze``, whether the garbage collector ignores the objects that exist before the first request.
"""

from __future__ import annotations

import gc

from starlette.concurrency import run_in_threadpool

from benchmarks.serving.peers.fastapi_server import serve
from benchmarks.serving.peers.matrices import Matrices
from benchmarks.serving.peers.protocol import Arguments, Scorer, answer


def serve_unbatched(scorer: Scorer, arguments: Arguments) -> None:
    """Serve a scorer without batches."""
    if arguments.settings["freeze"]:
        gc.collect()
        gc.freeze()

    async def answer_inline(data: bytes) -> bytes:
        return answer(scorer, data)

    async def answer_in_thread(data: bytes) -> bytes:
        return await run_in_threadpool(answer, scorer, data)

    serve(answer_in_thread if arguments.settings["threads"] else answer_inline, arguments.port)


if __name__ == "__main__":
    arguments = Arguments.from_command_line()
    serve_unbatched(Matrices(arguments.bundle, arguments.matrices), arguments)
