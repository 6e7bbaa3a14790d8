"""Measure the training loop of ranker: Parquet, cleaning, encoding, shuffling, forward, backward, optimizer.

    python -m benchmarks.training.ours CONFIG FOLDER EPOCHS [SETTING …]

Prints rows/s by phase, from the clock of the training loop. Validation is excluded, everything else is included, and
the first check is a warm-up. "All experts" and "after convergence" exclude the intervals in which experts were
dropped. Rows per CPU second, which depend less on other load on the machine, include validation.
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

from pipelines.config.config import load_config
from pipelines.jobs.train import train

KIB = 1024
"""Unit of ``ru_maxrss`` on Linux, in bytes."""


def main(config: Path, folder: Path, epochs: int, *settings: str) -> dict[str, Any]:
    """Train once and return the rates, the number of selected experts, the duration and the peak memory."""
    checks: list[dict[str, Any]] = []
    cpu_seconds: list[float] = []

    def on_check(check: dict[str, Any]) -> None:
        checks.append(check)
        cpu_seconds.append(time.process_time())

    start = time.perf_counter()
    loaded = load_config(config, [*settings, f"training.epochs={epochs}"])
    train(loaded, folder, on_check=on_check)
    rows = (checks[-1]["step"] - checks[0]["step"]) * loaded.training.batch_size
    experts = loaded.model.num_experts
    steady = [now for before, now in itertools.pairwise(checks) if now["experts"] == before["experts"]]
    all_experts = [check["rows_per_second"] for check in steady if check["experts"] == experts]
    selecting = [check["rows_per_second"] for check in checks[1:] if check["phase"] == "selecting"]
    selected = [check["rows_per_second"] for check in steady if check["phase"] == "selected"]
    return {
        "all_experts": statistics.harmonic_mean(all_experts) if all_experts else None,
        "before_convergence": statistics.harmonic_mean(selecting) if selecting else None,
        "after_convergence": statistics.harmonic_mean(selected) if selected else None,
        "all_steps": statistics.harmonic_mean([check["rows_per_second"] for check in checks[1:]]),
        "per_cpu_second": rows / (cpu_seconds[-1] - cpu_seconds[0]),
        "experts": experts,
        "experts_chosen": checks[-1]["experts"],
        "seconds_in_all": time.perf_counter() - start,
        "peak_bytes": peak_bytes(),
    }


def peak_bytes() -> int:
    """Return the peak memory of this process, mapped files included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])))
