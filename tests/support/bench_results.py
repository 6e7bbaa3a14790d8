"""Made-up results of ``ranker bench`` and of the serving benchmark."""

from __future__ import annotations

import copy
from typing import Any

from benchmarks.serving.engines import LOOK_UP
from benchmarks.serving.peers.catalog import PEERS
from benchmarks.serving.stacks import AREAS, FORWARD, JSON

STAGES = {"parse": 0.1, "look-up": 0.2, "queue": 5.0, "forward": 2.0, "write": 0.3}


def load(rate: float, p50: float = 2.0, p99: float = 4.0, failed: int = 0, sent: int = 110) -> dict[str, Any]:
    """Summary of a load; ``failed`` requests were rejected with 429."""
    return {
        "per_second": rate,
        "p50": p50,
        "p99": p99,
        "stages": STAGES,
        "failed": {"429": failed} if failed else {},
        "bytes": 2048.0,
        "requests": 100,
        "failed_p99": {"429": 12.0} if failed else {},
        "sent": sent,
        "cpu": 1.5,
        "client_cpu": 0.2,
    }


def serving_results() -> dict[str, Any]:
    """Two turns of every part of ``benchmarks.serving``."""
    seconds = {
        "dense, eager": [0.040, 0.050],
        "frozen, onnxruntime": [0.008, 0.010],
        "dense, onnxruntime": [0.014, 0.016],
        "one task, onnxruntime": [0.004, 0.005],
        "no split, onnxruntime": [0.0096, 0.011],
        LOOK_UP: [0.0001, 0.0002],
        "roofline": [0.006, 0.005],
        "roofline, no split": [0.008, 0.007],
    }
    forms, sizes, clients = ["ids", "columns", "rows"], [100, 500], [1, 64]
    http = {f"{form} {size} {n}": load(80.0) for form in forms for size in sizes for n in clients}
    shares = {f"100 {share}": load(50 * share, 2.0, 5.0) for share in (0.3, 0.7)} | {"100 most": 50.0}
    cases = [{"candidates": n, "clients": clients} for n, clients in ((10, 1), (10, 32), (100, 32), (500, 32))]
    keys = [f"{case['candidates']} {case['clients']}" for case in cases]
    peers = [
        {
            "name": peer.name,
            "version": peer.package and "0.2.19",
            "tuned": dict.fromkeys(keys, peer.settings[0]),
            "turns": [{key: {"ranker": load(300.0, p99=3.0), "peer": load(100.0, p99=6.0)} for key in keys}] * 2,
        }
        for peer in PEERS
    ]
    areas = dict.fromkeys(AREAS, 0.0) | {FORWARD: 900.0, JSON: 600.0}
    overload = {"alone": load(100.0), "crowd": load(90.0, 5.0, 10.0, failed=880, sent=1100), "after": load(95.0)}
    retries = {
        "16": {"answers": 1000.0, "rejections": 0.0, "answers_per_cpu_second": 1100.0},
        "2500": {"answers": 800.0, "rejections": 3000.0, "answers_per_cpu_second": 850.0},
    }
    attacks = {
        "slow": {"before": load(100.0), "during": load(90.0, p99=6.0)},
        "idle": dict.fromkeys(("before", "during"), load(9)),
    }
    logging = {**load(96.0), "writer": 0.025, "logged_bytes": 4096.0, "dropped": 0.0}
    measured = {
        "engines": {"sizes": {"100": seconds, "500": seconds}},
        "http": {"forms": forms, "candidates": sizes, "clients": clients, "turns": [http] * 2},
        "bare": {"candidates": 100, "clients": 64, "turns": [{"service": load(80.0), "engine": 100.0}] * 2},
        "open": {"form": "ids", "candidates": [100], "shares": [0.3, 0.7], "turns": [shares] * 2},
        "batching": {
            "candidates": 10,
            "clients": 32,
            "turns": [{"batches": load(150.0), "no batches": load(60.0, failed=3)}] * 2,
        },
        "overload": {
            "candidates": 300,
            "clients": 32,
            "times": 5,
            "admitted": 50,
            "turns": [{**overload, "grown": grown, "retries": retries} for grown in (1.0, 1.02)],
        },
        "attacks": {"candidates": 300, "clients": 4, "turns": [attacks] * 2},
        "served": {
            "candidates": 100,
            "clients": 32,
            "interval": 5.0,
            "turns": [{form: {"off": load(100.0), "on": logging} for form in ("ids", "columns")}] * 2,
        },
        "peers": {"cases": cases, "peers": peers},
        "budget": {"candidates": 100, "clients": 32, "turns": [{"cpu": 1500.0, "areas": areas}] * 2},
    }
    about = {"threads": 1, "model": "reference", "machine": {"load": 0.5}}
    return {part: {**copy.deepcopy(about), "measured": values} for part, values in measured.items()}


def measured_values() -> dict[str, Any]:
    """The measured values of ``serving_results``, by part."""
    return {part: result["measured"] for part, result in serving_results().items()}
