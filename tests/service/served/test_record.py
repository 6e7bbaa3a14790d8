"""Sampling by user, and hashes of user ids."""

from __future__ import annotations

import pytest

from service.served.record import UserHash, is_sampled


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


def test_user_hash_depends_on_the_key_and_on_the_text_of_the_id() -> None:
    hash_user = UserHash("a secret")
    assert hash_user(7) == hash_user("7") != hash_user("07")
    assert hash_user(7) != UserHash("another secret")(7)
    assert len(hash_user("\udc00 half of a surrogate pair")) == 32
    assert len({hash_user(user) for user in range(1_000)}) == 1_000


def test_user_hash_is_a_contract_with_programs_that_join() -> None:
    assert UserHash("a secret")("u1") == "f9f9dd9be165a3cdf648a6f0c0447a5d"
