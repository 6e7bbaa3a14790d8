"""ranker's whole loop: Parquet → clean → encode → shuffle → forward → backward → optimiser.

    python -m benchmarks.training.ours CONFIG FOLDER EPOCHS [SETTING …]

Prints rows/s by phase, as the loop's own clock has them: validation is outside, everything else inside. The first check
warms up. "All experts" and "after convergence" leave out the checks in whose course experts were dropped. Rows per CPU
second, which whoever else uses the machine changes less, include validation.
"""

from __future__ import annotations

import itertools
import json
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from pipelines.config.config import load
from pipelines.jobs.train import train

KIB = 1024


def main(config: Path, folder: Path, epochs: int, *settings: str) -> dict[str, Any]:
    """Trains once."""
    checks: list[dict[str, Any]] = []
    spent: list[float] = []

    def on_check(line: dict[str, Any]) -> None:
        checks.append(line)
        spent.append(time.process_time())

    start = time.perf_counter()
    loaded = load(config, [*settings, f"training.epochs={epochs}"])
    train(loaded, folder, on_check=on_check)
    rows = (checks[-1]["step"] - checks[0]["step"]) * loaded.training.batch_size
    experts = loaded.model.num_experts
    steady = [now for before, now in itertools.pairwise(checks) if now["experts"] == before["experts"]]
    dense = [check["rows_per_second"] for check in steady if check["experts"] == experts]
    choosing = [check["rows_per_second"] for check in checks[1:] if check["phase"] == "selecting"]
    chosen = [check["rows_per_second"] for check in steady if check["phase"] == "selected"]
    return {
        "all_experts": statistics.harmonic_mean(dense) if dense else None,
        "before_convergence": statistics.harmonic_mean(choosing) if choosing else None,
        "after_convergence": statistics.harmonic_mean(chosen) if chosen else None,
        "all_steps": statistics.harmonic_mean([check["rows_per_second"] for check in checks[1:]]),
        "per_cpu_second": rows / (spent[-1] - spent[0]),
        "experts": experts,
        "experts_chosen": checks[-1]["experts"],
        "seconds_in_all": time.perf_counter() - start,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB,
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])))
