"""Tests of the GPU benchmark on a CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import gpu

ROOT = Path(__file__).parents[2]

SCRIPT = """
import sys
import tomllib

allowed = {"torch", "numpy"}
with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
requirements = project["dependencies"] + [r for rs in project["optional-dependencies"].values() for r in rs]
names = {name.split(">")[0].split("=")[0].replace("-", "_") for name in requirements}
for name in (names | {"sklearn", "starlette", "fbgemm_gpu"}) - allowed:
    sys.modules[name] = None  # Makes its import fail.

from benchmarks import gpu

gpu.CANDIDATES = gpu.CANDIDATES[:2]
sys.exit(gpu.main(sys.argv[1:]))
"""


@pytest.mark.nightly(short="test_reference_detects_wrong_outputs")
def test_main_needs_only_torch_and_numpy(tmp_path: Path) -> None:
    file = tmp_path / "gpu.json"
    command = [sys.executable, "-c", SCRIPT, "--device", "cpu", "--turns", "1", "--json", str(file)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    results = json.loads(file.read_text())
    assert results["parity"] <= gpu.MAX_ERROR
    assert list(results["sizes"]) == [str(count) for count in gpu.CANDIDATES[:2]]
    for seconds in results["sizes"].values():
        assert set(seconds) == {"replay", "eager", "matmul", "memory"}
        assert all(value > 0 for values in seconds.values() for value in values)
    assert process.stdout.count("\n| ") == 2 + 2
    assert "- parity with float64 on the CPU: " in process.stdout


def test_reference_detects_wrong_outputs() -> None:
    """The reference does not share code with the forward pass."""
    torch.manual_seed(0)
    weights, request = gpu.draw_weights(), gpu.draw_request(3)
    outputs = gpu.Forward(weights, 3, torch.device("cpu")).replay(request).numpy()
    assert abs(outputs - gpu.reference(weights, request)).max() < 1e-3
    weights.towers[0][-1][1].add_(1.0)
    assert abs(outputs - gpu.reference(weights, request)).max() > 1e-2


def test_minimum_work_counts_each_product_and_byte_once() -> None:
    """250 + 250 inputs, 4 experts of 256-256, 8 towers of 64; 15 ids, 10 numbers and a request index per row."""
    products = 4 * (250 * 256 + 256 * 256) + 8 * (256 * 64 + 64)
    work = gpu.minimum_work(100)
    assert work["matmul"] == 2 * 100 * products
    weights = 4 * (500 * 256 + 256 * 256) + 8 * (256 * 64 + 64)
    assert work["memory"] == 4 * weights + 100 * (15 * 8 + 15 * 16 * 4 + 10 * 4 + 8 + 8 * 4)
