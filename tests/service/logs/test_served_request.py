"""Sampling by user."""

from __future__ import annotations

import pytest

from service.logs.served_request import is_sampled


@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
def test_is_sampled_selects_the_share_of_users_whatever_their_requests(share: float) -> None:
    users = [user for user in range(4_000) if is_sampled(user, "r-1", share)]
    assert len(users) / 4_000 == pytest.approx(share, abs=0.03)
    assert [user for user in range(4_000) if is_sampled(str(user), "r-2", share)] == users


def test_is_sampled_requests_without_a_user_are_sampled_by_their_id() -> None:
    sampled = sum(is_sampled(None, f"r-{i}", 0.3) for i in range(4_000))
    assert sampled / 4_000 == pytest.approx(0.3, abs=0.03)


def test_is_sampled_larger_share_keeps_the_users_of_a_smaller_one() -> None:
    small = {user for user in range(1_000) if is_sampled(user, "", 0.2)}
    assert small < {user for user in range(1_000) if is_sampled(user, "", 0.6)}
    assert all(is_sampled(user, "", 1.0) for user in range(1_000))
