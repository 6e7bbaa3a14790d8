"""Tests of the roofline."""

from __future__ import annotations

import pytest

from benchmarks.serving import roofline
from ranking.frozen.ranker import FrozenRanker
from ranking.selection import Shape


def total_flops(counts: dict[roofline.Product, int]) -> int:
    return sum(roofline.flops(product) * count for product, count in counts.items())


def test_products_without_split_count_all_flops_per_candidate(ranker: FrozenRanker) -> None:
    shape = Shape(500, (256, 256), (64,))
    assert total_flops(roofline.products(ranker, 7, split=False)) == 7 * (4 * shape.expert + 8 * shape.tower)


def test_products_with_split_count_shared_columns_once(ranker: FrozenRanker) -> None:
    saved = total_flops(roofline.products(ranker, 7, split=False)) - total_flops(roofline.products(ranker, 7))
    assert saved == 6 * 4 * 2 * 250 * 256


def test_calls_cover_every_product_and_kernel(ranker: FrozenRanker) -> None:
    calls = roofline.calls(ranker, 3)
    assert len(calls) == 2 * len({(1, 250, 256), (3, 250, 256), (3, 500, 256), (3, 256, 256), (3, 256, 64)})
    for call in calls.values():
        call()


def test_bounds_use_the_faster_kernel_of_each_turn(ranker: FrozenRanker) -> None:
    calls = roofline.calls(ranker, 3)
    measured = {name: [1.0, 4.0] if name.startswith("torch") else [2.0, 3.0] for name in calls}
    bounds = roofline.bounds(ranker, 3, measured)
    flops = {product: roofline.flops(product) for product in roofline.products(ranker, 3)}
    for turn, seconds in enumerate((1.0, 3.0)):
        rates = {product: count / seconds for product, count in flops.items() if product[2] >= roofline.MIN_COLUMNS}
        expected = roofline.total_seconds(roofline.products(ranker, 3), rates)
        assert bounds[roofline.ROOFLINE][turn] == pytest.approx(expected)
    assert bounds[roofline.UNSPLIT][1] == pytest.approx(3 * bounds[roofline.UNSPLIT][0])


def test_total_seconds_counts_a_narrow_product_at_the_lowest_rate() -> None:
    wide, wider, narrow = (2, 10, 20), (2, 10, 40), (2, 10, 1)
    seconds = roofline.total_seconds({wide: 1, wider: 1, narrow: 3}, {wide: 100.0, wider: 800.0})
    assert seconds == pytest.approx((800 + 3 * 40) / 100 + 1600 / 800)
