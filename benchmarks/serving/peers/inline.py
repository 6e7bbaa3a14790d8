"""FastAPI with the look-up and the backend of this repository, one request at a time; settings as ``hand_written``."""

from __future__ import annotations

from benchmarks.serving.peers.hand_written import serve_unbatched
from benchmarks.serving.peers.library import Library
from benchmarks.serving.peers.protocol import Arguments

if __name__ == "__main__":
    arguments = Arguments.from_command_line()
    serve_unbatched(Library(arguments.bundle), arguments)
