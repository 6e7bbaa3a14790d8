"""Keyed hashes of user ids."""

from __future__ import annotations

from ranking.artifacts.user_hash import UserHash


def test_user_hash_depends_on_the_key_and_on_the_text_of_the_id() -> None:
    hash_user = UserHash("a secret")
    assert hash_user(7) == hash_user("7") != hash_user("07")
    assert hash_user(7) != UserHash("another secret")(7)
    assert len(hash_user("\udc00 half of a surrogate pair")) == 32
    assert len({hash_user(user) for user in range(1_000)}) == 1_000


def test_user_hash_is_a_contract_with_programs_that_join() -> None:
    assert UserHash("a secret")("u1") == "f9f9dd9be165a3cdf648a6f0c0447a5d"
