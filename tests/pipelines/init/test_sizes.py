from __future__ import annotations

import pytest

from pipelines.init.sizes import choose_sizes


@pytest.mark.parametrize(
    ("rows", "batch_size", "epochs", "small"),
    [
        (50, 16, 20, True),
        (1000, 16, 9, True),
        (15_000, 16, 1, True),
        (131_651, 256, 1, False),
        (10_000_000, 4096, 1, False),
    ],
)
def test_sizes_give_a_few_hundred_steps(rows: int, batch_size: int, epochs: int, small: bool) -> None:
    sizes = choose_sizes(rows)
    assert (sizes.batch_size, sizes.epochs, sizes.small) == (batch_size, epochs, small)
    assert rows < 500 or sizes.steps >= 500
