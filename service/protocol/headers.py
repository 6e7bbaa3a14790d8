"""Headers and paths that the server and the HTTP layer treat alike."""

from __future__ import annotations

import re

Header = tuple[bytes, bytes]

REQUEST_ID = b"x-request-id"
TRACEPARENT = b"traceparent"
ECHOED_HEADERS = (REQUEST_ID, TRACEPARENT)
"""Headers of a request that its response repeats."""

SAFE_VALUE = re.compile(rb"[\x21-\x7e]{1,256}")
"""A request id that may be logged and echoed: up to 256 printable ASCII characters without spaces."""

SECURITY_HEADERS: tuple[Header, ...] = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))
"""Headers of every response: clients must not guess its type, and proxies must not store it because it is personal."""

FEEDBACK_PATH = "/v1/feedback"


def is_rank_path(path: str | bytes) -> bool:
    """Whether a path, or a request target without a query, ranks candidates: a rank or an inference operation."""
    return path.endswith(("/rank", "/infer")) if isinstance(path, str) else path.endswith((b"/rank", b"/infer"))
