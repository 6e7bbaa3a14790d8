"""Measures training and scoring, and writes docs/results/training.json and the tables of docs/benchmarks.md.

    python -m benchmarks.training --kuairand KUAIRAND --work WORK

Each measurement is a process of its own, on as many cores as threads; contenders take turns, and ratios are taken
within a turn, so that what else the machine does meets all of them. Rivals that are not installed are left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.training import report, shape
from benchmarks.training.prepared import prepare
from pipelines.bench.tables import replace_part
from pipelines.config.config import Config, ServingConfig, load
from pipelines.datasets import kuairand
from pipelines.datasets.synthetic import generate

ROOT = Path(__file__).parents[2]

RIVALS = {
    "torch-rechub": ("torch_rechub", "rechub", ("generator",)),
    "torch-rechub, whole batches": ("torch_rechub", "rechub", ("batches",)),
    "deepctr-torch": ("deepctr_torch", "deepctr", ()),
}
"""Name → what must be installed, our script, its further arguments."""

OURS = {"ranker": (), "ranker, bfloat16": ("training.precision=bfloat16",)}
"""Name → settings."""

CHOSEN = {
    "experts of 128": (),
    "experts of 128, a budget of 4": ("model.gate.experts_budget=4",),
    "experts of 256-256": ("model.expert_layers=[256, 256]",),
}
"""What is trained to see what dropping experts gains → settings."""

PARTS = ("rivals", "chosen", "rows", "ids", "score")


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    repeats: int
    epochs: int
    rows: tuple[int, ...]
    ids: tuple[int, ...]
    ids_rows: int
    score_rows: int


FULL = Sizes(3, 4, (10**5, 10**6), (10**4, 10**5, 10**6, 10**7), 60_000, 300_000)
QUICK = Sizes(1, 3, (10_000,), (1_000,), 10_000, 2_000)


class Bench:
    """Runs measurements.

    Args:
        work: folder of logs and runs; a log that is there is not written again.
        threads: of each process, and the cores that it may use.
        sizes: how much.
    """

    def __init__(self, work: Path, threads: int, sizes: Sizes) -> None:
        self._work, self._sizes = work, sizes
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
        self._environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}

    def rivals(self, raw: Path | None) -> dict[str, Any]:
        """Our loop and the rivals on KuaiRand, or on a small generated log."""
        config, rows = self._rows(raw)
        turns = []
        for turn in range(self._sizes.repeats):
            found: dict[str, Any] = {}
            for name, (package, script, options) in RIVALS.items():
                if importlib.util.find_spec(package):
                    found[name] = self._child(script, rows, self._sizes.epochs, *options)
            found |= {name: self._ours(config, *settings) for name, settings in OURS.items()}
            turns.append(found)
            say(f"turn {turn + 1}: {json.dumps(found)}")
        return {"log": "KuaiRand" if raw else "generated", "turns": turns}

    def chosen(self, raw: Path | None) -> dict[str, Any]:
        """Our loop with all experts and with the chosen ones, for models that differ in what is not dropped."""
        config, _ = self._rows(raw)
        turns = []
        for turn in range(self._sizes.repeats):
            found = {name: self._ours(config, *settings) for name, settings in CHOSEN.items()}
            turns.append(found)
            say(f"turn {turn + 1}: {json.dumps(found)}")
        return {"log": "KuaiRand" if raw else "generated", "turns": turns}

    def rows(self) -> list[dict[str, Any]]:
        """One epoch over logs of growing length."""
        return [self._growth("rows", rows) for rows in self._sizes.rows]

    def ids(self) -> list[dict[str, Any]]:
        """One epoch with embedding tables of growing length."""
        return [self._growth("ids", ids, self._sizes.ids_rows) for ids in self._sizes.ids]

    def score(self) -> dict[str, Any]:
        """``ranker score`` and the bare graph."""
        with self._folder("score") as folder:
            return self._child("scoring", folder, self._sizes.score_rows, max(3, self._sizes.repeats))

    def _ours(self, config: Path, *settings: str) -> dict[str, Any]:
        with self._folder("run") as folder:
            return self._child("ours", config, folder, self._sizes.epochs, *shape.SETTINGS, *settings)

    def _growth(self, kind: str, size: int, *more: int) -> dict[str, Any]:
        with self._folder(kind) as folder:
            found = {kind: size, **self._child("growth", kind, folder, size, *more)}
        say(json.dumps(found))
        return found

    def _rows(self, raw: Path | None) -> tuple[Path, Path]:
        """The log's configuration and the arrays for the rivals."""
        log = self._work / ("kuairand" if raw else "generated")
        if not log.exists():
            if raw:
                kuairand.convert(raw, log)
            else:
                generate(log, 20_000)
                _for_rivals(load(log / "ranker.toml")).write(log / "ranker.toml")
        arrays = self._work / f"{log.name}-rows"
        if not arrays.exists():
            prepare(log / "ranker.toml", arrays)
        return log / "ranker.toml", arrays

    def _folder(self, name: str) -> Emptied:
        return Emptied(self._work / name)

    def _child(self, script: str, *arguments: Any) -> dict[str, Any]:
        command = [sys.executable, "-m", f"benchmarks.training.{script}", *map(str, arguments)]
        done = subprocess.run(command, cwd=ROOT, env=self._environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return result


def _for_rivals(config: Config) -> Config:
    """What the rivals can do too: no task with null labels, since they mask none, and one width for all ids."""
    features = [f.model_copy(update={"dim": 16}) if hasattr(f, "dim") else f for f in config.features]
    changed = {"features": tuple(features), "tasks": config.tasks[:2], "serving": ServingConfig()}
    return config.model_copy(update=changed)


class Emptied:
    """A folder that is not there before and after."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Path:
        shutil.rmtree(self._path, ignore_errors=True)
        return self._path

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self._path, ignore_errors=True)


def say(line: str) -> None:
    """Progress."""
    print(line, file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Measures what is asked for; other results stay as they are."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--kuairand", type=Path, help="KuaiRand's original files; default: a small generated log")
    parser.add_argument("--work", type=Path, required=True, help="folder for logs and runs")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="where results go (default: docs)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="and cores (default: all)")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS, help="default: everything")
    parser.add_argument("--ten-million", action="store_true", help="also a log of 10^7 rows, which takes long")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    arguments = parser.parse_args(argv)
    sizes = QUICK if arguments.quick else FULL
    if arguments.ten_million:
        sizes = Sizes(**{**vars(sizes), "rows": (*sizes.rows, 10**7)})
    bench = Bench(arguments.work.absolute(), arguments.threads, sizes)
    file = arguments.docs / "results" / "training.json"
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for part in arguments.only:
        on = [arguments.kuairand] if part in ("rivals", "chosen") else []
        measured = getattr(bench, part)(*on)
        results[part] = {"threads": arguments.threads, "measured": measured}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(results, indent=1) + "\n")
    replace_part(arguments.docs / "benchmarks.md", "training", report.text(results))


if __name__ == "__main__":
    main()
