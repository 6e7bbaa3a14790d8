"""Implementation details that error messages must not disclose: paths, source locations, class and library names."""

from __future__ import annotations

import re

INTERNAL = re.compile(
    r"Traceback|File \"|line \d+, in|\.py\b|\.cc\b|\.h:|/(tmp|usr|home|srv|opt|var)/|site-packages"
    r"|<class|object at 0x|instance of"
    r"|Exception|\w(Error|Warning)\b"
    r"|\b(pydantic|pyarrow|numpy|torch|onnx|onnxruntime|starlette|fastapi|uvicorn|asyncio|orjson)\b"
    r"|\b(RankRequest|RankOptions|ItemColumns|NoneType|dict|Dictionary|NotImplemented|self)\b"
)


def internal_details(text: str) -> list[str]:
    """Return all implementation details in a text, each with the surrounding characters."""
    return [text[max(0, match.start() - 60) : match.end() + 60] for match in INTERNAL.finditer(text)]
