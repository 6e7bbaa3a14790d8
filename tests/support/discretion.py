"""What an error must not tell a stranger: paths, places in the source, names of classes and libraries."""

from __future__ import annotations

import re

INSIDES = re.compile(
    r"Traceback|File \"|line \d+, in|\.py\b|\.cc\b|\.h:|/(tmp|usr|home|srv|opt|var)/|site-packages"
    r"|<class|object at 0x|instance of"
    r"|Exception|\w(Error|Warning)\b"
    r"|\b(pydantic|pyarrow|numpy|torch|onnx|onnxruntime|starlette|fastapi|uvicorn|asyncio|orjson)\b"
    r"|\b(RankRequest|RankOptions|ItemColumns|NoneType|dict|Dictionary|NotImplemented|self)\b"
)


def indiscretions(text: str) -> list[str]:
    """All that a text tells of our insides, each with what surrounds it."""
    return [text[max(0, found.start() - 60) : found.end() + 60] for found in INSIDES.finditer(text)]
