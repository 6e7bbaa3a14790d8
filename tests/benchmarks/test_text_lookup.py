"""The indexes of the text lookup benchmark find the same ids, and the table has a time for each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import text_lookup
from benchmarks.lookup import KINDS, encoder_of, schema_of
from ranking.lookup.feature_index import FeatureIndex

ROWS = 300


def test_text_lookup_finds_all_ids_and_measures_each_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_lookup, "TURNS", {"cold": 2, "warm": 3})
    monkeypatch.setattr(text_lookup, "CACHE_BYTES", 10)
    folders = text_lookup.write_indexes(tmp_path, ROWS)
    encoder, numbers = encoder_of(schema_of(KINDS[0])), np.arange(ROWS)
    for name, folder in folders.items():
        ids = numbers.tolist() if name == "integers" else text_lookup.texts_of(numbers, int(name.split()[0]))
        assert sorted(FeatureIndex.open(folder, encoder, "item").rows(ids).tolist()) == numbers.tolist()
    for state in text_lookup.TURNS:
        times = text_lookup.compare(folders, ROWS, 10, state, lambda: sum(range(1000)))
        assert len(times) == len(folders) + 1
        assert min(times) > 0
    sizes = {name: text_lookup.index_size(folder) for name, folder in folders.items()}
    for length in text_lookup.LENGTHS:
        assert sizes[f"{length} characters, format 3"] == sizes["8 characters, format 3"]
        assert sizes[f"{length} characters, format 3"] < sizes[f"{length} characters, format 2"]
