"""Routes without FastAPI's conversion of arguments."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi.routing import APIRoute


class RawRoute(APIRoute):
    """A route that is described in the OpenAPI document but called by the gateway.

    Its function takes the request and its path parameters as text, and returns the response. FastAPI's conversion of
    arguments costs a small request as much as its scoring. Dependencies are ignored.
    """


def find_route(routes: Sequence[RawRoute], method: str, path: str) -> tuple[RawRoute, dict[str, str]] | None:
    """Return the first route that matches a request, and its path parameters; None if none matches."""
    for route in routes:
        if method in (route.methods or ()) and (match := route.path_regex.match(path)):
            return route, match.groupdict()
    return None
