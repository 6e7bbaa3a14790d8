"""Down-sampled negatives: which labels and rows are left of a batch."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
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


def batch(labels: Float32) -> LabeledBatch:
    n = np.arange(len(labels))
    numbers = n.astype(np.float32)
    inputs = EncodedBatch(n[:, None], (), numbers[:, None], n[:, None] < 0)
    return LabeledBatch(inputs, labels, n, numbers, inputs)


LABELS = st.lists(st.tuples(*[st.sampled_from([0.0, 1.0, NAN])] * 3), min_size=2, max_size=20)


@given(LABELS, st.integers(0, 5))
@settings(deadline=None)
def test_only_negatives_of_that_task_are_masked_and_only_rows_without_labels_are_dropped(
    labels: list[tuple[float, ...]], step: int
) -> None:
    given_ = np.array(labels, np.float32)
    uniform = draw_uniforms(3, step, len(given_))
    found = downsample_negatives(batch(given_), TASKS, uniform)
    masked = given_.copy()
    for row in range(len(labels)):
        if labels[row][0] == 0 and uniform[row] >= 0.2:
            masked[row, 0] = NAN
    left = [row for row in range(len(labels)) if not np.isnan(masked[row]).all()]
    kept = left if len(left) >= 2 else list(range(len(labels)))
    assert found.users.tolist() == kept
    np.testing.assert_array_equal(found.labels, masked[kept], strict=True)
    for part in (found.inputs.ids[:, 0], found.weights, found.position_inputs.ids[:, 0]):  # type: ignore[union-attr]
        assert part.tolist() == kept


def test_the_share_of_the_negatives_is_kept() -> None:
    labels = np.zeros((20_000, 3), np.float32)
    labels[:5000, 0] = 1.0
    found = downsample_negatives(batch(labels), TASKS, draw_uniforms(0, 1, 20_000))
    negatives = int((found.labels[:, 0] == 0).sum())
    assert abs(negatives - 0.2 * 15_000) < 150
    assert int((found.labels[:, 0] == 1).sum()) == 5000


def test_draws_are_the_same_for_the_same_step_and_others_for_another() -> None:
    assert np.array_equal(draw_uniforms(1, 2, 5), draw_uniforms(1, 2, 5))
    assert not np.array_equal(draw_uniforms(1, 2, 5), draw_uniforms(1, 3, 5))
    assert not np.array_equal(draw_uniforms(1, 2, 5), draw_uniforms(2, 2, 5))


def test_a_batch_from_which_nothing_is_taken_is_the_same() -> None:
    examples = batch(np.ones((4, 3), np.float32))
    assert np.array_equal(downsample_negatives(examples, TASKS, draw_uniforms(0, 1, 4)).labels, examples.labels)
