"""Keys of the feature store."""

from __future__ import annotations

from redis.crc import key_slot

from ranking.artifacts.feature_store_keys import counter_key, counter_prefix, counter_state_key, key_prefix


def test_key_prefix_joins_prefix_model_and_owner() -> None:
    assert key_prefix("ranker", "feed", "item") == "ranker:feed:item:"


def test_counter_keys_of_a_model_share_a_slot_in_a_cluster_only() -> None:
    def slots(clustered: bool) -> set[int]:
        start = counter_prefix("ranker", "feed", clustered=clustered)
        keys = [counter_state_key(start), *(counter_key(start, 1, "user", i) for i in range(9))]
        return {key_slot(key.encode()) for key in keys}

    assert len(slots(clustered=True)) == 1
    assert len(slots(clustered=False)) > 1
    assert counter_prefix("ranker", "feed", clustered=False) == "ranker:feed:counters:"
    assert counter_prefix("ranker", "feed", clustered=True) == "{ranker:feed:counters}:"
