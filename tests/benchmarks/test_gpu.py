"""``benchmarks/gpu.py``: its logic on a CPU, where nothing but torch and numpy is installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import gpu

ROOT = Path(__file__).parent.parent

ALONE = """
import sys
import tomllib

allowed = {"torch", "numpy"}
with open("pyproject.toml", "rb") as file:
    wanted = tomllib.load(file)["project"]
needed = wanted["dependencies"] + [name for names in wanted["optional-dependencies"].values() for name in names]
names = {name.split(">")[0].split("=")[0].replace("-", "_") for name in needed}
for name in (names | {"sklearn", "starlette", "fbgemm_gpu"}) - allowed:
    sys.modules[name] = None  # its import fails

from benchmarks.gpu import main

sys.exit(main(sys.argv[1:]))
"""


def test_it_measures_where_only_torch_and_numpy_are_installed(tmp_path: Path) -> None:
    file = tmp_path / "gpu.json"
    command = [sys.executable, "-c", ALONE, "--device", "cpu", "--turns", "1", "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    assert found["parity"] <= gpu.PARITY
    assert list(found["sizes"]) == [str(count) for count in gpu.CANDIDATES]
    for spent in found["sizes"].values():
        assert set(spent) == {"replay", "eager", "matmul", "memory"}
        assert all(seconds > 0 for turns in spent.values() for seconds in turns)
    assert done.stdout.count("\n| ") == 2 + len(gpu.CANDIDATES)
    assert "- parity with float64 on the CPU: " in done.stdout


def test_a_machine_without_a_gpu_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == 1
    assert "finds no NVIDIA GPU here" in capsys.readouterr().err


def test_wrong_outputs_would_be_noticed() -> None:
    """Parity compares with the formula, not with the forward itself."""
    torch.manual_seed(0)
    weights, request = gpu.draw_weights(), gpu.draw_request(3)
    outputs = gpu.Bucket(weights, 3, torch.device("cpu")).replay(request).numpy()
    assert abs(outputs - gpu.reference(weights, request)).max() < 1e-3
    weights.towers[0][-1][1].add_(1.0)
    assert abs(outputs - gpu.reference(weights, request)).max() > 1e-2


def test_the_floors_count_each_product_and_each_byte_once() -> None:
    """By hand: 250 + 250 inputs; 4 experts 256-256; 8 towers of 64; 15 ids, 10 numbers and one request a row."""
    products = 4 * (250 * 256 + 256 * 256) + 8 * (256 * 64 + 64)
    found = gpu.least(100)
    assert found["matmul"] == 2 * 100 * products
    weights = 4 * (500 * 256 + 256 * 256) + 8 * (256 * 64 + 64)
    assert found["memory"] == 4 * weights + 100 * (15 * 8 + 15 * 16 * 4 + 10 * 4 + 8 + 8 * 4)
