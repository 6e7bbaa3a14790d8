from __future__ import annotations

import pytest

from pipelines.init.names import (
    ITEMS,
    PLAIN,
    USERS,
    entity_rank,
    identifier,
    is_action,
    is_negative,
    is_past,
    is_watch_time,
    model_name,
    words,
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("isLongView_7d", ["is", "long", "view", "7d"]),
        ("user id", ["user", "id"]),
        ("HTTPStatus", ["http", "status"]),
        ("x.y-z", ["x", "y", "z"]),
    ],
)
def test_words_splits_names_of_every_style(name: str, expected: list[str]) -> None:
    assert words(name) == expected


@pytest.mark.parametrize("name", ["user_id", "userId", "USERID", "uid", "customer_key", "User ID", "reviewerID"])
def test_entity_rank_recognizes_user_ids(name: str) -> None:
    assert entity_rank(name, USERS) == 0


@pytest.mark.parametrize("name", ["ReviewerName", "reviews", "passenger_count", "user_age"])
def test_entity_rank_rejects_other_columns_of_users(name: str) -> None:
    assert entity_rank(name, USERS) is None


def test_entity_rank_ranks_plain_entities_below_ids() -> None:
    assert entity_rank("movieId", ITEMS) == 0
    assert entity_rank("movie", ITEMS) == PLAIN
    assert entity_rank("movie_length", ITEMS) is None


@pytest.mark.parametrize("name", ["is_click", "clicked", "long_view", "isProfileEnter", "add_to_cart", "liked"])
def test_is_action_accepts_names_of_labels(name: str) -> None:
    assert is_action(name)


@pytest.mark.parametrize("name", ["click_rate", "clicks_7d", "is_weekend", "share_price", "view_count"])
def test_is_action_rejects_names_with_other_words(name: str) -> None:
    assert not is_action(name)


def test_is_past_and_is_negative_and_is_watch_time() -> None:
    assert is_past("avg_rating")
    assert is_past("clicks_7d")
    assert not is_past("rating")
    assert is_negative("is_hate")
    assert not is_negative("is_like")
    assert is_watch_time("play_time_ms")
    assert not is_watch_time("avg_watch_time")
    assert not is_watch_time("duration_ms")


def test_identifier_gives_valid_unique_names() -> None:
    taken: set[str] = set()
    assert [identifier(name, taken) for name in ("a b", "a.b", "0x", "", "ü", "off %")] == [
        *("a_b", "a_b_2", "_0x", "_", "__2", "off"),
    ]


def test_model_name_replaces_what_is_not_allowed() -> None:
    assert model_name("my log (2)") == "my-log-2"
    assert model_name("ß") == "ranker"
