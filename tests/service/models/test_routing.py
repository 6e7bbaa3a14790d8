"""Routing of requests between the current version and its canary."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from service.engine.model import LoadedModel
from service.models.registry import ModelRouting

UNUSED: Any = None


def loaded(version: str) -> LoadedModel:
    return LoadedModel("feed", version, UNUSED, UNUSED, UNUSED, 0.0)


CURRENT, CANARY, SHADOW = loaded("1"), loaded("2"), loaded("3")
USERS = [f"u{i}" for i in range(20_000)]


def share(routing: ModelRouting, users: list[Any]) -> float:
    return sum(routing.route(user, "r") is CANARY for user in users) / len(users)


@pytest.mark.parametrize("weight", [0.01, 0.25, 0.5])
def test_route_sends_the_canary_its_share_of_users(weight: float) -> None:
    routing = ModelRouting(CURRENT, CANARY, weight)
    assert share(routing, USERS) == pytest.approx(weight, rel=0.2)
    assert share(routing, list(range(20_000))) == pytest.approx(weight, rel=0.2)


def test_route_weight_0_or_1_selects_no_or_all_users() -> None:
    assert share(ModelRouting(CURRENT, CANARY, 0.0), USERS) == 0.0
    assert share(ModelRouting(CURRENT, CANARY, 1.0), USERS) == 1.0
    assert share(ModelRouting(CURRENT), USERS) == 0.0


def test_route_same_user_always_gets_the_same_version() -> None:
    routing = ModelRouting(CURRENT, CANARY, 0.5)
    for user in USERS[:200]:
        assert len({routing.route(user, f"r{i}") for i in range(5)}) == 1


def test_route_without_user_depends_on_the_request_id() -> None:
    routing = ModelRouting(CURRENT, CANARY, 0.5)
    versions = [routing.route(None, f"r{i}") for i in range(2_000)]
    assert sum(version is CANARY for version in versions) == pytest.approx(1_000, rel=0.1)
    assert versions == [routing.route(None, f"r{i}") for i in range(2_000)]


def test_route_growing_weight_only_moves_users_to_the_canary() -> None:
    small, large = ModelRouting(CURRENT, CANARY, 0.1), ModelRouting(CURRENT, CANARY, 0.3)
    assert all(large.route(user, "r") is CANARY for user in USERS if small.route(user, "r") is CANARY)


def test_route_another_canary_starts_with_other_users() -> None:
    other = replace(CANARY, version="9")
    first = [ModelRouting(CURRENT, CANARY, 0.1).route(user, "r") is CANARY for user in USERS]
    second = [ModelRouting(CURRENT, other, 0.1).route(user, "r") is other for user in USERS]
    assert sum(a and b for a, b in zip(first, second, strict=True)) < 0.2 * sum(first)


def test_route_accepts_any_text_as_user() -> None:
    assert ModelRouting(CURRENT, CANARY, 1.0).route("\ud800\0", "r") is CANARY


def test_roles_and_versions_contain_only_assigned_roles() -> None:
    assert dict(ModelRouting(CURRENT, CANARY, 0.1, SHADOW).roles) == {
        "current": CURRENT,
        "canary": CANARY,
        "shadow": SHADOW,
    }
    assert dict(ModelRouting(CURRENT, shadow=CURRENT).roles) == {"current": CURRENT, "shadow": CURRENT}
    assert ModelRouting(CURRENT, CANARY, 0.1, CANARY).versions == {"1": CURRENT, "2": CANARY}
