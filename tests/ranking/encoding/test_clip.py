"""Limits of standardized numbers: their configuration, effect and storage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranking.encoding.encoder import MAX_ABS_VALUE, Encoder, transform_numbers
from ranking.encoding.encoder_fitter import EncoderFitter
from ranking.encoding.feature_table import fill_features
from ranking.schema import NumericFeature, Schema
from tests.support.validation_messages import validation_message

CLICK = {"name": "click", "kind": "binary"}


def document(**keys: Any) -> dict[str, Any]:
    feature = {"name": "count", "kind": "numeric", "owner": "user", **keys}
    return {"name": "small", "features": [feature], "tasks": [CLICK]}


def fit(values: list[float | None], **keys: Any) -> Encoder:
    schema = Schema.model_validate(document(**keys))
    fitter = EncoderFitter(schema)
    fitter.add(fill_features(pa.table({"count": pa.array(values, pa.float64())}), schema, {}))
    return fitter.encoder()


def encode(encoder: Encoder, values: list[float | None]) -> np.ndarray[Any, Any]:
    columns = fill_features(pa.table({"count": pa.array(values, pa.float64())}), encoder.schema, {})
    return encoder.encode(columns).dense.astype(np.float64)


NUMBERS = st.lists(st.none() | st.floats(-0.99, 1e12), min_size=1, max_size=20)


@given(
    training=NUMBERS,
    rows=NUMBERS,
    transform=st.sampled_from(["standardise", "log1p"]),
    clip=st.just("none") | st.floats(0.01, 20.0),
    default=st.none() | st.floats(0.0, 1e9),
)
def test_encode_clips_the_standardized_number_and_keeps_missing_values(
    training: list[float | None], rows: list[float | None], transform: str, clip: Any, default: float | None
) -> None:
    keys = {"transform": transform, "clip": clip} | ({} if default is None else {"default": default})
    encoder = fit(training, **keys)
    scale, dense = encoder.scales["count"], encode(encoder, rows)
    numbers = np.array([default if value is None else value for value in rows], np.float64)
    standardized = (transform_numbers(numbers, transform) - scale.shift) / scale.scale
    limit = MAX_ABS_VALUE if clip == "none" else clip
    expected = np.where(np.isnan(standardized), 0.0, np.clip(standardized, -limit, limit))
    np.testing.assert_array_equal(dense[:, 0], expected.astype(np.float32))
    assert scale.has_missing_indicator == (None in training and default is None)
    if scale.has_missing_indicator:
        assert dense[:, 1].tolist() == [float(value is None) for value in rows]


def test_clip_default_is_five_standard_deviations() -> None:
    encoder = fit([-1.0, 1.0])
    assert encode(encoder, [-100.0, -5.0, 4.5, 6.0, 1e300])[:, 0].tolist() == [-5.0, -5.0, 4.5, 5.0, 5.0]


def test_clip_none_keeps_numbers_up_to_the_range_of_the_model() -> None:
    encoder = fit([-1.0, 1.0], clip="none")
    assert encode(encoder, [-1e3, 1e300])[:, 0].tolist() == [-1e3, np.float32(MAX_ABS_VALUE)]


def test_clip_does_not_limit_numbers_without_transform() -> None:
    encoder = fit([-1.0, 1.0], transform="none")
    assert encoder.schema.numerics[0].clip == "none"
    assert encode(encoder, [1000.0])[:, 0].tolist() == [1000.0]


def test_clip_does_not_change_the_statistics_of_the_training_rows() -> None:
    values: list[float | None] = [0.0] * 99 + [100.0]
    clipped, unclipped = (fit(values, clip=clip).scales["count"] for clip in (2, "none"))
    assert (clipped.shift, clipped.scale) == (unclipped.shift, unclipped.scale)


@pytest.mark.parametrize("value", [0, -5, True, float("inf"), float("nan"), "off", "5", [5]])
def test_clip_that_is_not_a_positive_number_is_rejected(value: Any) -> None:
    assert validation_message(Schema, document(clip=value)).startswith(
        "features.'count'.clip: must be a number of standard deviations greater than 0, or \"none\" for no limit (got "
    )


def test_clip_of_a_number_without_transform_is_rejected() -> None:
    assert validation_message(Schema, document(transform="none", clip=5)) == (
        "features.'count': clip = 5 counts standard deviations, but transform = 'none' keeps the number: remove clip"
    )


@pytest.mark.parametrize("clip", [2.5, "none"])
def test_clip_is_written_and_read_with_the_encoder(clip: Any, tmp_path: Path) -> None:
    encoder = fit([-1.0, 1.0, None], clip=clip)
    encoder.write(tmp_path)
    again = Encoder.read(tmp_path, encoder.schema)
    assert again.scales == encoder.scales
    assert again.schema == encoder.schema


def test_encoder_written_without_clip_reads_back_without_a_limit(tmp_path: Path) -> None:
    encoder = fit([-1.0, 1.0])
    encoder.write(tmp_path)
    file = tmp_path / "scales.parquet"
    pq.write_table(pq.read_table(file).drop_columns(["clip"]), file)  # as version 0.1.0 wrote it
    again = Encoder.read(tmp_path, encoder.schema)
    assert encode(again, [1000.0])[:, 0].tolist() == [1000.0]
    (feature,) = again.schema.numerics
    assert isinstance(feature, NumericFeature)
    assert feature.clip == "none"
