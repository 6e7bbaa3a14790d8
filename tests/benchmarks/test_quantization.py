"""The tables of the quantization benchmark: sizes, speeds and changes of scores by type of weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import quantization
from pipelines.bench.requests import Requests
from ranking.frozen.onnx_export import onnx_body
from ranking.frozen.ranker import FrozenRanker


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_tables_have_sizes_and_changes_of_scores_by_type_of_weights(
    ranker: FrozenRanker, reference: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantization, "TURNS", 1)
    monkeypatch.setattr(quantization, "COUNTS", (10, 20))
    requests = Requests(ranker, reference)
    exact, half, int8 = map(cells, quantization.embedding_rows(ranker, requests))
    assert (exact[0], half[0], int8[0]) == ("float32", "float16", "int8")
    assert float(exact[1]) > float(half[1]) > float(int8[1])
    assert float(exact[-1]) == 0 < float(half[-1]) < float(int8[-1]) < 0.01

    rows = {row[0]: row for row in map(cells, quantization.body_rows(ranker, requests))}
    changed = {name: float(row[-1]) for name, row in rows.items()}
    assert changed.pop("int8, scale per batch") > 0.001
    assert max(changed.values()) < 1e-5
    assert all(float(row[-2]) < 0.01 for row in rows.values())


def test_output_layers_stay_in_float32(ranker: FrozenRanker) -> None:
    rewriter = quantization.BodyRewriter(onnx_body(ranker, ranker.schema.task_names))
    rewriter.rewrite(rewriter.int8_by_row)
    outputs = [node for node in rewriter.nodes if node.op_type == "Gemm"]
    assert {node.output[0] for node in outputs} == {f"output.{task}" for task in ranker.schema.task_names}
