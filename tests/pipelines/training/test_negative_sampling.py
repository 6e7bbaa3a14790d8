from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipelines.training.labeled_batch import LabeledBatch
from pipelines.training.negative_sampling import downsample_negatives, draw_uniforms
from ranking.encoding.batch import EncodedBatch, Float32
from ranking.schema import Task

TASKS = [
    Task(name="click", kind="binary", keep_negatives=0.2),
    Task(name="like", kind="binary"),
    Task(name="watch", kind="regression"),
]
NAN = np.nan
LABELS = st.lists(st.tuples(*[st.sampled_from([0.0, 1.0, NAN])] * 3), min_size=2, max_size=20)


def make_batch(labels: Float32) -> LabeledBatch:
    n = np.arange(len(labels))
    numbers = n.astype(np.float32)
    inputs = EncodedBatch(n[:, None], (), numbers[:, None], n[:, None] < 0)
    return LabeledBatch(inputs, labels, n, numbers, inputs)


@given(LABELS, st.integers(0, 5))
def test_downsample_negatives_masks_only_that_tasks_negatives_and_drops_only_rows_without_labels(
    rows: list[tuple[float, ...]], step: int
) -> None:
    labels = np.array(rows, np.float32)
    uniforms = draw_uniforms(3, step, len(labels))
    sampled = downsample_negatives(make_batch(labels), TASKS, uniforms)
    masked = labels.copy()
    for row in range(len(rows)):
        if rows[row][0] == 0 and uniforms[row] >= 0.2:
            masked[row, 0] = NAN
    labeled = [row for row in range(len(rows)) if not np.isnan(masked[row]).all()]
    kept = labeled if len(labeled) >= 2 else list(range(len(rows)))
    assert sampled.users.tolist() == kept
    np.testing.assert_array_equal(sampled.labels, masked[kept], strict=True)
    for column in (sampled.inputs.ids[:, 0], sampled.weights, sampled.position_inputs.ids[:, 0]):  # type: ignore[union-attr]
        assert column.tolist() == kept


def test_downsample_negatives_keeps_the_fraction_of_negatives_and_all_positives() -> None:
    labels = np.zeros((20_000, 3), np.float32)
    labels[:5000, 0] = 1.0
    sampled = downsample_negatives(make_batch(labels), TASKS, draw_uniforms(0, 1, 20_000))
    negatives = int((sampled.labels[:, 0] == 0).sum())
    assert abs(negatives - 0.2 * 15_000) < 150
    assert int((sampled.labels[:, 0] == 1).sum()) == 5000


def test_draw_uniforms_depends_on_seed_and_step_only() -> None:
    assert np.array_equal(draw_uniforms(1, 2, 5), draw_uniforms(1, 2, 5))
    assert not np.array_equal(draw_uniforms(1, 2, 5), draw_uniforms(1, 3, 5))
    assert not np.array_equal(draw_uniforms(1, 2, 5), draw_uniforms(2, 2, 5))


def test_downsample_negatives_without_negatives_leaves_labels_unchanged() -> None:
    batch = make_batch(np.ones((4, 3), np.float32))
    assert np.array_equal(downsample_negatives(batch, TASKS, draw_uniforms(0, 1, 4)).labels, batch.labels)
