"""Measure training and offline scoring and write docs/results/training.json and the tables of docs/benchmarks.md.

    python -m benchmarks.training --kuairand KUAIRAND --work WORK

Each measurement runs in its own process, with as many cores as threads. Contenders take turns, and ratios are computed
within a turn, so that other load on the machine affects all of them. Libraries that are not installed are omitted.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.document import replace_part
from benchmarks.training import report, shape
from benchmarks.training.prepared import prepare
from pipelines.config.config import Config, ServingConfig, load_config
from pipelines.datasets import kuairand
from pipelines.datasets.synthetic import generate

ROOT = Path(__file__).parents[2]

LIBRARIES = {
    "torch-rechub": ("torch_rechub", "rechub", ("generator",)),
    "torch-rechub, whole batches": ("torch_rechub", "rechub", ("batches",)),
    "deepctr-torch": ("deepctr_torch", "deepctr", ()),
}
"""Name → (required package, module of this folder, its additional arguments)."""

OURS = {"ranker": (), "ranker, bfloat16": ("training.precision=bfloat16",)}
"""Name → settings of ranker."""

CHOSEN = {
    "experts of 128": (),
    "experts of 128, a budget of 4": ("model.gate.experts_budget=4",),
    "experts of 256-256": ("model.expert_layers=[256, 256]",),
}
"""Models of the part ``chosen`` → settings."""

PARTS = ("libraries", "chosen", "rows", "ids", "score")


@dataclass(frozen=True)
class Sizes:
    """Amount of work.

    Attributes:
        repeats: turns of a comparison.
        epochs: epochs of a comparison.
        rows: rows of the generated logs of the part ``rows``.
        ids: ids in the vocabulary of the part ``ids``.
        ids_rows: rows of its generated log.
        score_rows: rows of the generated log of the part ``score``.
    """

    repeats: int
    epochs: int
    rows: tuple[int, ...]
    ids: tuple[int, ...]
    ids_rows: int
    score_rows: int


FULL = Sizes(3, 4, (10**5, 10**6), (10**4, 10**5, 10**6, 10**7), 60_000, 300_000)
QUICK = Sizes(1, 3, (10_000,), (1_000,), 10_000, 2_000)


class Benchmark:
    """Runs the measurements.

    Args:
        work: folder of logs and runs; existing logs are reused.
        threads: threads and cores of each process.
        sizes: amount of work.
    """

    def __init__(self, work: Path, threads: int, sizes: Sizes) -> None:
        self._work, self._sizes = work, sizes
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
        self._environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}

    def libraries(self, raw: Path | None) -> dict[str, Any]:
        """Measure ranker and the other libraries on KuaiRand, or on a small generated log."""
        config, rows = self._rows(raw)
        turns = []
        for turn in range(self._sizes.repeats):
            results: dict[str, Any] = {}
            for name, (package, module, options) in LIBRARIES.items():
                if importlib.util.find_spec(package):
                    results[name] = self._run_module(module, rows, self._sizes.epochs, *options)
            results |= {name: self._train(config, *settings) for name, settings in OURS.items()}
            turns.append(results)
            log(f"turn {turn + 1}: {json.dumps(results)}")
        return {"log": "KuaiRand" if raw else "generated", "turns": turns}

    def chosen(self, raw: Path | None) -> dict[str, Any]:
        """Measure ranker with all experts and with the chosen ones, for models of different size."""
        config, _ = self._rows(raw)
        turns = []
        for turn in range(self._sizes.repeats):
            results = {name: self._train(config, *settings) for name, settings in CHOSEN.items()}
            turns.append(results)
            log(f"turn {turn + 1}: {json.dumps(results)}")
        return {"log": "KuaiRand" if raw else "generated", "turns": turns}

    def rows(self) -> list[dict[str, Any]]:
        """Train one epoch on logs of increasing length."""
        return [self._growth("rows", rows) for rows in self._sizes.rows]

    def ids(self) -> list[dict[str, Any]]:
        """Train one epoch with embedding tables of increasing length."""
        return [self._growth("ids", ids, self._sizes.ids_rows) for ids in self._sizes.ids]

    def score(self) -> dict[str, Any]:
        """Measure ``ranker score`` and the frozen graph only."""
        with self._temporary_folder("score") as folder:
            return self._run_module("scoring", folder, self._sizes.score_rows, max(3, self._sizes.repeats))

    def _train(self, config: Path, *settings: str) -> dict[str, Any]:
        with self._temporary_folder("run") as folder:
            return self._run_module("ours", config, folder, self._sizes.epochs, *shape.SETTINGS, *settings)

    def _growth(self, kind: str, size: int, *more: int) -> dict[str, Any]:
        with self._temporary_folder(kind) as folder:
            result = {kind: size, **self._run_module("growth", kind, folder, size, *more)}
        log(json.dumps(result))
        return result

    def _rows(self, raw: Path | None) -> tuple[Path, Path]:
        """Write the log and its rows as arrays; return its configuration and the folder of the arrays."""
        folder = self._work / ("kuairand" if raw else "generated")
        if not folder.exists():
            if raw:
                kuairand.convert(raw, folder)
            else:
                generate(folder, 20_000)
            config = load_config(folder / "ranker.toml", list(shape.WITHOUT_COUNTERS))
            (config if raw else _for_libraries(config)).write(folder / "ranker.toml")
        arrays = self._work / f"{folder.name}-rows"
        if not arrays.exists():
            prepare(folder / "ranker.toml", arrays)
        return folder / "ranker.toml", arrays

    @contextmanager
    def _temporary_folder(self, name: str) -> Iterator[Path]:
        """Remove a folder before and after the block."""
        folder = self._work / name
        shutil.rmtree(folder, ignore_errors=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _run_module(self, module: str, *arguments: Any) -> dict[str, Any]:
        command = [sys.executable, "-m", f"benchmarks.training.{module}", *map(str, arguments)]
        process = subprocess.run(command, cwd=ROOT, env=self._environment, capture_output=True, text=True, check=False)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)}\n{process.stderr}")
        result: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
        return result


def _for_libraries(config: Config) -> Config:
    """Restrict a configuration to what all libraries support: labels without nulls, and one embedding width."""
    features = [f.model_copy(update={"dim": 16}) if hasattr(f, "dim") else f for f in config.features]
    changed = {"features": tuple(features), "tasks": config.tasks[:2], "serving": ServingConfig()}
    return config.model_copy(update=changed)


def log(line: str) -> None:
    """Print progress on stderr."""
    print(line, file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure the requested parts; results of other parts are kept."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument(
        "--kuairand", type=Path, help="folder of the original KuaiRand files (default: a small generated log)"
    )
    parser.add_argument("--work", type=Path, required=True, help="folder of logs and runs")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="folder of the results (default: docs)")
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count(), help="threads and cores of each process (default: all)"
    )
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS, help="parts to measure (default: all)")
    parser.add_argument("--ten-million", action="store_true", help="also measure a log of 10^7 rows")
    parser.add_argument("--quick", action="store_true", help="measure tiny sizes, to test the benchmark itself")
    arguments = parser.parse_args(argv)
    sizes = QUICK if arguments.quick else FULL
    if arguments.ten_million:
        sizes = replace(sizes, rows=(*sizes.rows, 10**7))
    benchmark = Benchmark(arguments.work.absolute(), arguments.threads, sizes)
    file = arguments.docs / "results" / "training.json"
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for part in arguments.only:
        inputs = [arguments.kuairand] if part in ("libraries", "chosen") else []
        measured = getattr(benchmark, part)(*inputs)
        results[part] = {"threads": arguments.threads, "measured": measured}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(results, indent=1) + "\n")
    replace_part(arguments.docs / "benchmarks.md", "training", report.format_report(results))


if __name__ == "__main__":
    main()
