"""``find_route``: the first raw route that matches the method and the path."""

from __future__ import annotations

from service.http.raw_route import RawRoute, find_route


def operation() -> None: ...


ROUTES = [
    RawRoute("/rank", operation, methods=["POST"]),
    RawRoute("/models/{model}/rank", operation, methods=["POST"]),
    RawRoute("/models/{model}/versions/{version}/rank", operation, methods=["POST"]),
]


def test_find_route_returns_the_path_parameters() -> None:
    assert find_route(ROUTES, "POST", "/rank") == (ROUTES[0], {})
    assert find_route(ROUTES, "POST", "/models/a/rank") == (ROUTES[1], {"model": "a"})
    assert find_route(ROUTES, "POST", "/models/a b/versions/2/rank") == (ROUTES[2], {"model": "a b", "version": "2"})


def test_find_route_returns_none_for_other_methods_and_paths() -> None:
    for method, path in (("GET", "/rank"), ("POST", "/rank/"), ("POST", "/models//rank"), ("POST", "/models/a/b/rank")):
        assert find_route(ROUTES, method, path) is None
