"""What the roofline counts."""

from __future__ import annotations

import pytest

from pipelines.bench import roofline
from ranking.frozen.ranker import FrozenRanker
from ranking.selection import Shape


def total(counts: dict[roofline.Product, int]) -> int:
    return sum(roofline.flops(product) * count for product, count in counts.items())


def test_without_a_split_all_flops_of_chosen_experts_and_towers_count(ranker: FrozenRanker) -> None:
    shape = Shape(500, (256, 256), (64,))
    assert total(roofline.products(ranker, 7, split=False)) == 7 * (4 * shape.expert + 8 * shape.tower)


def test_with_a_split_what_is_shared_counts_once(ranker: FrozenRanker) -> None:
    saved = total(roofline.products(ranker, 7, split=False)) - total(roofline.products(ranker, 7))
    assert saved == 6 * 4 * 2 * 250 * 256


def test_every_product_runs_on_every_kernel(ranker: FrozenRanker) -> None:
    calls = roofline.calls(ranker, 3)
    assert len(calls) == 2 * len({(1, 250, 256), (3, 250, 256), (3, 500, 256), (3, 256, 256), (3, 256, 64)})
    for call in calls.values():
        call()


def test_the_bound_takes_the_faster_kernel_of_each_turn(ranker: FrozenRanker) -> None:
    calls = roofline.calls(ranker, 3)
    one = {name: [1.0, 4.0] if name.startswith("torch") else [2.0, 3.0] for name in calls}
    bounds = roofline.bounds(ranker, 3, one)
    flops = {p: roofline.flops(p) for p in roofline.products(ranker, 3)}
    for turn, seconds in enumerate((1.0, 3.0)):
        rates = {p: f / seconds for p, f in flops.items() if p[2] >= roofline.COLUMNS}
        expected = roofline.seconds_of(roofline.products(ranker, 3), rates)
        assert bounds[roofline.ROOFLINE][turn] == pytest.approx(expected)
    assert bounds[roofline.UNSPLIT][1] == pytest.approx(3 * bounds[roofline.UNSPLIT][0])


def test_a_narrow_product_counts_at_the_lowest_rate() -> None:
    wide, wider, narrow = (2, 10, 20), (2, 10, 40), (2, 10, 1)
    spent = roofline.seconds_of({wide: 1, wider: 1, narrow: 3}, {wide: 100.0, wider: 800.0})
    assert spent == pytest.approx((800 + 3 * 40) / 100 + 1600 / 800)
