"""Run an experiment of the papers and write its numbers, tables and figure.

    python -m benchmarks.papers NAME [--raw DIR] [--seeds N] [--quick] [--out DIR]

Writes NAME.json, NAME.md and NAME.svg to docs/results/papers; docs/papers.md is the index. An experiment
on an original data set declares in ``RAW`` what DIR must contain and where to get it.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.papers import (
    decomposition,
    movielens,
    recommender,
    recovery,
    specialization,
    synthetic,
    vision,
)
from ranking.errors import LogError

EXPERIMENTS = {
    "recovery": recovery,
    "synthetic": synthetic,
    "recommender": recommender,
    "movielens": movielens,
    "vision": vision,
    "decomposition": decomposition,
    "specialization": specialization,
}
QUICK_SEEDS = 2
RESULTS = Path(__file__).parents[2] / "docs" / "results" / "papers"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the experiment.

    Returns:
        Exit code 0.

    Raises:
        SystemExit: with exit code 2 if an argument is wrong, or the original data are missing or damaged.
    """
    summary = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers", description=summary)
    parser.add_argument("name", choices=EXPERIMENTS, metavar="NAME", help=f"one of {', '.join(EXPERIMENTS)}")
    parser.add_argument("--raw", type=Path, metavar="DIR", help="folder of the original data set, for some experiments")
    parser.add_argument("--seeds", type=int, metavar="N", help="number of fresh problems (default: as published)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to test the experiment itself")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the results (default: docs/results/papers)")
    arguments = parser.parse_args(argv)
    experiment = EXPERIMENTS[arguments.name]
    seeds = arguments.seeds
    if seeds is None:
        seeds = QUICK_SEEDS if arguments.quick else experiment.SEEDS
    if seeds < 2:
        parser.error("--seeds: a paired interval needs at least 2")
    if arguments.out is None and (arguments.quick or arguments.seeds is not None):
        parser.error("--quick and --seeds need --out DIR, so that they do not replace the published results")
    inputs = {"raw": arguments.raw} if hasattr(experiment, "RAW") else {}
    if arguments.raw is not None and not inputs:
        parser.error(f"--raw: {arguments.name} does not read an original data set")
    folder = arguments.out or RESULTS
    torch.set_num_threads(1)
    start = time.monotonic()
    try:
        results = experiment.run(seeds, quick=arguments.quick, **inputs)
    except LogError as error:
        parser.error(f"{error}. {arguments.name} reads {experiment.RAW}")
    options = [
        *(["--raw", "DIR"] if arguments.raw else []),
        *(["--seeds", str(arguments.seeds)] if arguments.seeds else []),
        *(["--quick"] if arguments.quick else []),
    ]
    command = shlex.join(["python", "-m", "benchmarks.papers", arguments.name, *options])
    results |= {"command": command, "seeds": seeds, "hours": round((time.monotonic() - start) / 3600, 3)}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{arguments.name}.json").write_text(json.dumps(results, separators=(",", ":")) + "\n")
    experiment.plot(results).savefig(folder / f"{arguments.name}.svg", metadata={"Date": None})
    text = format_document(arguments.name, results)
    (folder / f"{arguments.name}.md").write_text(text)
    print(text)
    return 0


def format_document(name: str, results: dict[str, object]) -> str:
    """Format the results of an experiment as a Markdown document."""
    experiment = EXPERIMENTS[name]
    title = (experiment.__doc__ or "").partition("\n")[0].rstrip(".")
    claims = "\n".join(f"- {claim}: **{verdict}**." for claim, verdict in experiment.claims(results))
    run = f"`{results['command']}`, {results['hours']} hours."
    return f"# {title}\n\n{run}\n\n{claims}\n\n![{name}]({name}.svg)\n\n{experiment.format_tables(results)}"


if __name__ == "__main__":
    sys.exit(main())
