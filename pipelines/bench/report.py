"""Results of ``ranker bench`` as tables."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from pipelines.bench import aims
from pipelines.bench.tables import cores, section, spread, three_digits

STAGES = ("parse", "look-up", "queue", "forward", "write")
REFERENCE = "reference"


def text(results: dict[str, Any]) -> str:
    """All tables; of the reference model the aims first."""
    parts = {part: found["measured"] for part, found in results.items()}
    tables = [_aims(parts)] if all(found["model"] == REFERENCE for found in results.values()) else []
    tables += [table(parts[part], results[part]) for part, table in TABLES.items() if part in results]
    return "\n".join(tables)


def _aims(parts: dict[str, Any]) -> str:
    how = "Ratios are taken within a turn; median (lowest – highest). The median decides."
    return section("Aims", how, ("", "found", "aim", ""), aims.lines(parts))


def _engines(measured: dict[str, Any], about: dict[str, Any]) -> str:
    sizes: dict[str, dict[str, list[float]]] = measured["sizes"]
    names = list(next(iter(sizes.values())))
    lines = [
        (name, *(three_digits(statistics.median(spent[name]) * 1000) for spent in sizes.values())) for name in names
    ]
    return section(
        "Within one process",
        f"{_how(about)} Milliseconds from the encoded arrays of one request to its scores, by candidates.",
        ("", *sizes),
        lines,
    )


def _http(measured: dict[str, Any], about: dict[str, Any]) -> str:
    turns, clients = measured["turns"], measured["clients"]
    lines = [
        (form, f"{candidates:,}", *(_rate([turn[f"{form} {candidates} {n}"] for turn in turns]) for n in clients))
        for form in measured["forms"]
        for candidates in measured["candidates"]
    ]
    closed = section(
        "Over HTTP, closed loop",
        f"{_how(about)} Requests/s, with p50 and p99 in milliseconds, by clients.",
        ("form", "candidates", *(f"{n} client{'s' if n > 1 else ''}" for n in clients)),
        lines,
    )
    return closed + "\n" + _stages(measured, about)


def _stages(measured: dict[str, Any], about: dict[str, Any]) -> str:
    one = min(measured["clients"])
    lines = []
    for form in measured["forms"]:
        for candidates in measured["candidates"]:
            loads = [turn[f"{form} {candidates} {one}"] for turn in measured["turns"]]
            spent = (_median(loads, lambda load, stage=stage: load["stages"][stage]) for stage in STAGES)
            whole = _median(loads, lambda load: load["cpu"])
            size = _median(loads, lambda load: load["bytes"] / 1024)
            lines.append((form, f"{candidates:,}", *map(three_digits, spent), three_digits(whole), f"{size:,.0f}"))
    return section(
        "Stages of a request",
        f"{_how(about)} Milliseconds as the service tells them with one client, which leaves the core to one request "
        "at a time; CPU is all that its process used for a request, bytes are the answer's.",
        ("form", "candidates", *STAGES, "CPU", "KiB"),
        lines,
    )


def _bare(measured: dict[str, Any], about: dict[str, Any]) -> str:
    turns = measured["turns"]
    rate = _median(turns, lambda turn: turn["engine"])
    return section(
        "Beside the bare engine",
        f"{_how(about)} Requests/s: over HTTP (ids, {measured['candidates']} candidates, {measured['clients']} "
        "clients, closed loop; with p50 and p99 in milliseconds), and of the engine within one process, which is given "
        "encoded arrays, one request after the other; measured before and after each loop.",
        ("over HTTP", "bare engine", "HTTP / bare"),
        [(_rate([turn["service"] for turn in turns]), f"{rate:,.0f}", spread(aims.of_bare({"bare": measured}), ".2f"))],
    )


def _open(measured: dict[str, Any], about: dict[str, Any]) -> str:
    turns = measured["turns"]
    lines = []
    for candidates in measured["candidates"]:
        for share in measured["shares"]:
            loads = [turn[f"{candidates} {share}"] for turn in turns]
            tails = spread([load["p99"] / load["p50"] for load in loads], ".1f")
            rate, p50, p99 = (_median(loads, lambda load, key=key: load[key]) for key in ("per_second", "p50", "p99"))
            lines.append(
                (f"{candidates:,}", f"{share:.0%}", f"{rate:,.0f}", three_digits(p50), three_digits(p99), tails)
            )
    return section(
        "Over HTTP, open loop",
        f"{_how(about)} Poisson arrivals at a share of what 64 clients reach in a closed loop, "
        f"{measured['form']}; milliseconds count from when a request was due.",
        ("candidates", "of the most", "requests/s", "p50", "p99", "p99 / p50"),
        lines,
    )


def _batching(measured: dict[str, Any], about: dict[str, Any]) -> str:
    names = list(measured["turns"][0])
    lines = [(name, _rate([turn[name] for turn in measured["turns"]])) for name in names]
    how = f"{_how(about)} {measured['candidates']} candidates, {measured['clients']} clients, closed loop."
    return section("Batches of many requests", how, ("", "requests/s, p50 / p99 ms"), lines)


def _overload(measured: dict[str, Any], about: dict[str, Any]) -> str:
    turns, times = measured["turns"], measured["times"]
    names = {"alone": f"{measured['clients']} clients", "crowd": f"{times} times that", "after": "after it"}
    return section(
        "Overload",
        f"{_how(about)} {measured['candidates']} candidates, ids, at most {measured['admitted']} requests at a time. A "
        f"closed loop, {times} times as many requests a second as it had answers (Poisson), and the closed loop again; "
        "milliseconds.",
        ("", "answers/s", "p50", "p99", "refused (429)", "p99 of that", "failed otherwise"),
        [(what, *_crowd([turn[name] for turn in turns])) for name, what in names.items()],
    )


def _crowd(loads: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """What became of those that were answered, of those that were refused, and of the others."""
    rate, p50, p99 = (_median(loads, lambda load, key=key: load[key]) for key in ("per_second", "p50", "p99"))
    refused = _median(loads, lambda load: load["failed"].get(aims.REFUSED, 0) / load["sent"])
    late = _median(loads, lambda load: load["failed_p99"].get(aims.REFUSED, 0.0))
    others = sum(sum(load["failed"].values()) - load["failed"].get(aims.REFUSED, 0) for load in loads)
    told = three_digits(late) if refused else "–"
    return f"{rate:,.0f}", three_digits(p50), three_digits(p99), f"{refused:.0%}", told, str(others)


def _attacks(measured: dict[str, Any], about: dict[str, Any]) -> str:
    turns = measured["turns"]
    lines = [
        (
            name,
            _rate([turn[name]["before"] for turn in turns]),
            _rate([turn[name]["during"] for turn in turns]),
            spread([aims.slowed(turn, name) for turn in turns], ".2f"),
        )
        for name in turns[0]
    ]
    return section(
        "Under attack",
        f"{_how(about)} What {measured['clients']} other clients notice: {measured['candidates']} candidates, ids, "
        "closed loop; requests/s, with p50 and p99 in milliseconds.",
        ("attack", "before", "during", "p99, during / before"),
        lines,
    )


def _rival(measured: dict[str, Any], about: dict[str, Any]) -> str:
    lines = []
    for case in measured["cases"]:
        turns, tuned = case["turns"], case["tuned"]
        gains = [turn["ranker"]["per_second"] / turn["litserve"]["per_second"] for turn in turns]
        queue = "ZeroMQ" if tuned["fast_queue"] else "multiprocessing"
        lines.append(
            (
                str(case["cores"]),
                str(case["candidates"]),
                _rate([turn["ranker"] for turn in turns]),
                _rate([turn["litserve"] for turn in turns]),
                spread(gains, ".2f"),
                f"batches of {tuned['max_batch_size']}, {tuned['batch_timeout'] * 1000:g} ms, {queue}",
            )
        )
    return section(
        "Beside LitServe",
        f"LitServe {about['machine']['litserve']}, {measured['clients']} clients, closed loop, ids; both on the same "
        f"cores. {_turns(measured['cases'][0]['turns'])} Requests/s, with p50 and p99 in milliseconds.",
        ("cores", "candidates", "ranker", "LitServe", "ranker / LitServe", "LitServe's best setting"),
        lines,
    )


TABLES: dict[str, Callable[[dict[str, Any], dict[str, Any]], str]] = {
    "engines": _engines,
    "http": _http,
    "bare": _bare,
    "open": _open,
    "batching": _batching,
    "overload": _overload,
    "attacks": _attacks,
    "rival": _rival,
}
"""Part → its table."""


def _how(about: dict[str, Any]) -> str:
    measured = about["measured"]
    turns = measured["turns"] if "turns" in measured else next(iter(next(iter(measured["sizes"].values())).values()))
    return f"{cores(about['threads']).capitalize()}. {_turns(turns)}"


def _turns(turns: Sequence[Any]) -> str:
    return f"{len(turns)} turn{'s' if len(turns) > 1 else ''}; medians."


def _rate(loads: Sequence[dict[str, Any]]) -> str:
    """Requests/s and times of loads; what failed is said."""
    rate, p50, p99 = (_median(loads, lambda load, key=key: load[key]) for key in ("per_second", "p50", "p99"))
    failed = sum(sum(load["failed"].values()) for load in loads)
    return f"{rate:,.0f}, {three_digits(p50)} / {three_digits(p99)}" + (f" ({failed} failed)" if failed else "")


def _median(loads: Sequence[dict[str, Any]], value: Callable[[dict[str, Any]], float]) -> float:
    return statistics.median(map(value, loads))
