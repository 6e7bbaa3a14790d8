"""Estimate of the memory of a training, and its comparison with the available memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipelines.training import memory
from pipelines.training.memory import available_memory, estimate_memory, format_bytes, require_memory
from ranking.errors import ConfigError

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop

GB = 1_000_000_000


@pytest.fixture
def gigabyte(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 1 GB of available memory."""
    monkeypatch.setattr(memory, "available_memory", lambda: GB)


def hashed(shop: Shop, **settings: Any) -> None:
    """Set settings of the feature ``tab``."""
    features = tuple(
        feature.model_copy(update=settings) if feature.name == "tab" else feature for feature in shop.schema.features
    )
    shop.schema = shop.schema.model_copy(update={"features": features})


def test_tables_are_counted_with_their_sums(shop: Shop) -> None:
    hashed(shop, hash_buckets=1_000_000, dim=32)
    parts = estimate_memory(shop.config(), {"tab": 1_000_000, "user_id": 50})
    assert parts["feature 'tab' (hash_buckets = 1,000,000, dim = 32)"] == 4 * 33_000_000
    assert parts["feature 'user_id' (50 ids, dim = 16)"] == 4 * 850


def test_ranks_of_one_machine_hold_their_shards(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    parts = estimate_memory(shop.config(), {"user_id": 1000})
    assert parts["feature 'user_id' (1,000 ids, dim = 16)"] == 4 * 17_000 * 4 // 8


@pytest.mark.usefixtures("gigabyte")
def test_hashed_table_that_does_not_fit_is_named_before_the_log_is_read(shop: Shop) -> None:
    hashed(shop, hash_buckets=100_000_000_000)
    with pytest.raises(ConfigError) as caught:
        require_memory(shop.config())
    assert "but 1 GB are available: reduce feature 'tab' (hash_buckets = 100,000,000,000, dim = 16)" in str(
        caught.value
    )


@pytest.mark.usefixtures("gigabyte")
@pytest.mark.parametrize(
    ("sections", "sizes", "named"),
    [
        ({}, {"item_id": 20_000_000}, "feature 'item_id' (20,000,000 ids, dim = 16)"),
        ({"model": {"expert_layers": [100_000_000]}}, {}, "model.expert_layers = [100000000]"),
        ({"model": {"tower_layers": [100_000_000]}}, {}, "model.tower_layers = [100000000]"),
        ({"training": {"batch_size": 10_000_000}}, {}, "training.batch_size = 10,000,000"),
        ({"training": {"shuffle_rows": 10**12}}, {}, "training.shuffle_rows = 1,000,000,000,000"),
    ],
)
def test_largest_part_is_named(shop: Shop, sections: dict[str, Any], sizes: dict[str, int], named: str) -> None:
    config = shop.config(**sections)
    with pytest.raises(ConfigError) as caught:
        require_memory(config, sizes, rows=10_000_000)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("gigabyte")
def test_settings_larger_than_the_log_need_no_more_memory_than_the_log(shop: Shop) -> None:
    require_memory(shop.config(training={"batch_size": 10**15, "shuffle_rows": 10**15}), {"user_id": 100}, rows=10_000)


def test_unknown_memory_is_not_compared(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: None)
    hashed(shop, hash_buckets=10**18)
    require_memory(shop.config())


def test_available_memory_is_what_machine_and_container_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    assert available_memory() is None
    (tmp_path / "meminfo").write_text("MemTotal:  9000 kB\nMemAvailable:  5000 kB\n")
    assert available_memory() == 5_120_000
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("900000\n")
    (tmp_path / "memory.stat").write_text("anon 1\nactive_file 100000\ninactive_file 200000\n")
    assert available_memory() == 5_120_000
    (tmp_path / "memory.max").write_text("2000000\n")
    assert available_memory() == 2_000_000 - 900_000 + 300_000


@pytest.mark.parametrize(
    ("size", "text"), [(12, "12 B"), (1_500_000, "1.5 MB"), (6_400_000_000_000, "6.4 TB"), (9 * 10**18, "9,000 PB")]
)
def test_format_bytes_uses_decimal_units(size: int, text: str) -> None:
    assert format_bytes(size) == text
