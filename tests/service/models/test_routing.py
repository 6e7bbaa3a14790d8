"""Which version answers a request while a canary is out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from service.engine.model import LoadedModel
from service.models.routing import ModelRouting

NOTHING: Any = None


def served(version: str) -> LoadedModel:
    return LoadedModel("feed", version, NOTHING, NOTHING, NOTHING, 0.0)


CURRENT, CANARY, SHADOW = served("1"), served("2"), served("3")
USERS = [f"u{i}" for i in range(20_000)]


def share(lineup: ModelRouting, users: list[Any]) -> float:
    return sum(lineup.choose(user, "r") is CANARY for user in users) / len(users)


@pytest.mark.parametrize("weight", [0.01, 0.25, 0.5])
def test_the_canary_answers_its_share_of_the_users(weight: float) -> None:
    lineup = ModelRouting(CURRENT, CANARY, weight)
    assert share(lineup, USERS) == pytest.approx(weight, rel=0.2)
    assert share(lineup, list(range(20_000))) == pytest.approx(weight, rel=0.2)


def test_none_or_all() -> None:
    assert share(ModelRouting(CURRENT, CANARY, 0.0), USERS) == 0.0
    assert share(ModelRouting(CURRENT, CANARY, 1.0), USERS) == 1.0
    assert share(ModelRouting(CURRENT), USERS) == 0.0


def test_a_user_is_always_answered_by_the_same_version_whatever_the_request() -> None:
    lineup = ModelRouting(CURRENT, CANARY, 0.5)
    for user in USERS[:200]:
        assert len({lineup.choose(user, f"r{i}") for i in range(5)}) == 1


def test_requests_without_a_user_are_drawn_one_by_one_and_repeated_ones_alike() -> None:
    lineup = ModelRouting(CURRENT, CANARY, 0.5)
    drawn = [lineup.choose(None, f"r{i}") for i in range(2_000)]
    assert sum(each is CANARY for each in drawn) == pytest.approx(1_000, rel=0.1)
    assert drawn == [lineup.choose(None, f"r{i}") for i in range(2_000)]


def test_users_only_move_to_the_canary_as_its_share_grows() -> None:
    few, more = ModelRouting(CURRENT, CANARY, 0.1), ModelRouting(CURRENT, CANARY, 0.3)
    assert all(more.choose(user, "r") is CANARY for user in USERS if few.choose(user, "r") is CANARY)


def test_another_canary_begins_with_other_users() -> None:
    other = replace(CANARY, version="9")
    first = [ModelRouting(CURRENT, CANARY, 0.1).choose(user, "r") is CANARY for user in USERS]
    second = [ModelRouting(CURRENT, other, 0.1).choose(user, "r") is other for user in USERS]
    assert sum(a and b for a, b in zip(first, second, strict=True)) < 0.2 * sum(first)


def test_any_text_is_a_user() -> None:
    assert ModelRouting(CURRENT, CANARY, 1.0).choose("\ud800\0", "r") is CANARY


def test_roles_are_those_that_are_filled() -> None:
    assert dict(ModelRouting(CURRENT, CANARY, 0.1, SHADOW).roles) == {
        "current": CURRENT,
        "canary": CANARY,
        "shadow": SHADOW,
    }
    assert dict(ModelRouting(CURRENT, shadow=CURRENT).roles) == {"current": CURRENT, "shadow": CURRENT}
    assert ModelRouting(CURRENT, CANARY, 0.1, CANARY).versions == {"1": CURRENT, "2": CANARY}
