"""Format the results of ``ranker bench`` as Markdown tables."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipelines.bench.tables import cores, plural, section, spread, three_digits

STAGES = ("parse", "look-up", "queue", "forward", "write")
REJECTED = "429"
"""HTTP status of a rejected request."""

Table = Callable[[dict[str, Any], dict[str, Any]], str]
"""(measured values of a part, its whole results) → Markdown."""


def format_tables(results: dict[str, Any], tables: Mapping[str, Table] | None = None) -> str:
    """Format the tables of all measured parts; ``tables`` maps parts to formatters (default: ``TABLES``)."""
    tables = TABLES if tables is None else tables
    return "\n".join(
        table(results[part]["measured"], results[part]) for part, table in tables.items() if part in results
    )


def http_to_engine_ratios(measured: Mapping[str, Any]) -> list[float]:
    """Return requests/s over HTTP divided by those of the engine only, turn by turn."""
    return [turn["service"]["per_second"] / turn["engine"] for turn in measured["turns"]]


def attack_slowdown(turn: Mapping[str, Any], attack: str) -> float:
    """Return the p99 of regular clients during an attack, divided by that before it."""
    ratio: float = turn[attack]["during"]["p99"] / turn[attack]["before"]["p99"]
    return ratio


def served_log_ratios(measured: Mapping[str, Any], form: str) -> list[float]:
    """Return requests/s with the served log divided by those without it, turn by turn."""
    return [turn[form]["on"]["per_second"] / turn[form]["off"]["per_second"] for turn in measured["turns"]]


def caption_of_turns(turns: Sequence[Any]) -> str:
    """Describe how values of several turns are combined."""
    return f"Medians of {plural(len(turns), 'turn')}."


def rate_and_latencies(loads: Sequence[dict[str, Any]]) -> str:
    """Format requests/s, p50 and p99 of loads, and the number of failed requests if there are any."""
    rate, p50, p99 = _medians(loads, "per_second", "p50", "p99")
    failed = sum(sum(load["failed"].values()) for load in loads)
    return f"{rate:,.0f}, {three_digits(p50)} / {three_digits(p99)}" + (f" ({failed} failed)" if failed else "")


def _engines(measured: dict[str, Any], about: dict[str, Any]) -> str:
    sizes: dict[str, dict[str, list[float]]] = measured["sizes"]
    names = list(next(iter(sizes.values())))
    rows = [
        (name, *(three_digits(statistics.median(seconds[name]) * 1000) for seconds in sizes.values())) for name in names
    ]
    return section(
        "Within one process",
        f"{_caption(about)} Milliseconds from the encoded arrays of one request to its scores, by candidates.",
        ("", *sizes),
        rows,
    )


def _http(measured: dict[str, Any], about: dict[str, Any]) -> str:
    turns, clients = measured["turns"], measured["clients"]
    rows = [
        (
            form,
            f"{candidates:,}",
            *(rate_and_latencies([turn[f"{form} {candidates} {n}"] for turn in turns]) for n in clients),
        )
        for form in measured["forms"]
        for candidates in measured["candidates"]
    ]
    closed_loop = section(
        "Over HTTP, closed loop",
        f"{_caption(about)} Each cell shows requests/s, then p50 / p99 in milliseconds, by number of clients.",
        ("form", "candidates", *(plural(n, "client") for n in clients)),
        rows,
    )
    return closed_loop + "\n" + _stages(measured, about)


def _stages(measured: dict[str, Any], about: dict[str, Any]) -> str:
    clients = min(measured["clients"])
    rows = []
    for form in measured["forms"]:
        for candidates in measured["candidates"]:
            loads = [turn[f"{form} {candidates} {clients}"] for turn in measured["turns"]]
            stages = _medians([load["stages"] for load in loads], *STAGES)
            (cpu,) = _medians(loads, "cpu")
            kib = _median(loads, lambda load: load["bytes"] / 1024)
            rows.append((form, f"{candidates:,}", *map(three_digits, stages), three_digits(cpu), f"{kib:,.0f}"))
    return section(
        "Stages of a request",
        f"{_caption(about)} Milliseconds per stage, as the service reports them with {plural(clients, 'client')}. "
        "CPU is the CPU time of the service per request, in milliseconds; KiB is the size of the response body.",
        ("form", "candidates", *STAGES, "CPU", "KiB"),
        rows,
    )


def _engine_only(measured: dict[str, Any], about: dict[str, Any]) -> str:
    turns = measured["turns"]
    (rate,) = _medians(turns, "engine")
    return section(
        "HTTP and engine only",
        f"{_caption(about)} Over HTTP: ids, {measured['candidates']} candidates, {measured['clients']} clients, closed "
        "loop; requests/s, then p50 / p99 in milliseconds. Engine only: requests/s in one process, which scores one "
        "encoded request after the other, measured before and after each loop.",
        ("over HTTP", "engine only", "HTTP / engine only"),
        [
            (
                rate_and_latencies([turn["service"] for turn in turns]),
                f"{rate:,.0f}",
                spread(http_to_engine_ratios(measured), ".2f"),
            )
        ],
    )


def _open_loop(measured: dict[str, Any], about: dict[str, Any]) -> str:
    turns = measured["turns"]
    rows = []
    for candidates in measured["candidates"]:
        for share in measured["shares"]:
            loads = [turn[f"{candidates} {share}"] for turn in turns]
            tails = spread([load["p99"] / load["p50"] for load in loads], ".1f")
            rate, p50, p99 = _medians(loads, "per_second", "p50", "p99")
            rows.append(
                (f"{candidates:,}", f"{share:.0%}", f"{rate:,.0f}", three_digits(p50), three_digits(p99), tails)
            )
    return section(
        "Over HTTP, open loop",
        f"{_caption(about)} Poisson arrivals at a share of the peak, which is the rate of 64 clients in a closed loop; "
        f"{measured['form']}. Milliseconds count from the time at which a request was due.",
        ("candidates", "of peak", "requests/s", "p50", "p99", "p99 / p50"),
        rows,
    )


def _batching(measured: dict[str, Any], about: dict[str, Any]) -> str:
    names = list(measured["turns"][0])
    rows = [(name, rate_and_latencies([turn[name] for turn in measured["turns"]])) for name in names]
    caption = f"{_caption(about)} {measured['candidates']} candidates, {measured['clients']} clients, closed loop."
    return section("Batches of many requests", caption, ("", "requests/s, p50 / p99 ms"), rows)


def _overload(measured: dict[str, Any], about: dict[str, Any]) -> str:
    turns, factor, clients = measured["turns"], measured["times"], measured["clients"]
    loads = {"alone": f"{clients} clients", "crowd": f"{factor}× that rate", "after": f"{clients} clients, afterwards"}
    overload = section(
        "Overload",
        f"{_caption(about)} {measured['candidates']} candidates, ids, at most {measured['admitted']} admitted "
        f"requests. A closed loop of {clients} clients, Poisson arrivals at {factor} times its rate, then the closed "
        "loop again. Latencies in milliseconds.",
        ("load", "responses/s", "p50", "p99", "rejected (429)", "p99 of rejections", "other failures"),
        [(label, *_overload_cells([turn[name] for turn in turns])) for name, label in loads.items()],
    )
    return overload + _retries(measured, about)


def _retries(measured: dict[str, Any], about: dict[str, Any]) -> str:
    """Format the answers and rejections of clients without back-off; empty for results without them."""
    turns = [turn["retries"] for turn in measured["turns"] if "retries" in turn]
    if not turns:
        return ""
    levels = list(turns[0])
    best = [max(turn[level]["answers"] for level in levels) for turn in turns]
    rows = []
    for level in levels:
        answers, rejections = _medians([turn[level] for turn in turns], "answers", "rejections")
        shares = [turn[level]["answers"] / most for turn, most in zip(turns, best, strict=True)]
        rows.append((f"{int(level):,}", f"{answers:,.0f}", f"{rejections:,.0f}", spread(shares, ".2f")))
    return "\n" + section(
        "Clients that retry at once",
        f"{_caption(about)} Clients that send their next request as soon as they have a response, also after a 429. "
        "Answers and rejections per second by the counters of the service, with the clients on other cores.",
        ("clients", "answers/s", "rejected (429)/s", "of the peak"),
        rows,
    )


def _overload_cells(loads: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """Format the rate and latencies of responses, the share and p99 of rejections, and the number of other failures."""
    rate, p50, p99 = _medians(loads, "per_second", "p50", "p99")
    rejected = _median(loads, lambda load: load["failed"].get(REJECTED, 0) / load["sent"])
    rejection_p99 = _median(loads, lambda load: load["failed_p99"].get(REJECTED, 0.0))
    other_failures = sum(sum(load["failed"].values()) - load["failed"].get(REJECTED, 0) for load in loads)
    return (
        f"{rate:,.0f}",
        three_digits(p50),
        three_digits(p99),
        f"{rejected:.0%}",
        three_digits(rejection_p99) if rejected else "–",
        str(other_failures),
    )


def _attacks(measured: dict[str, Any], about: dict[str, Any]) -> str:
    turns = measured["turns"]
    rows = [
        (
            name,
            rate_and_latencies([turn[name]["before"] for turn in turns]),
            rate_and_latencies([turn[name]["during"] for turn in turns]),
            spread([attack_slowdown(turn, name) for turn in turns], ".2f"),
        )
        for name in turns[0]
    ]
    return section(
        "Under attack",
        f"{_caption(about)} Effect on {measured['clients']} regular clients: {measured['candidates']} candidates, ids, "
        "closed loop. Requests/s, then p50 / p99 in milliseconds.",
        ("attack", "before", "during", "p99, during / before"),
        rows,
    )


def _served_log(measured: dict[str, Any], about: dict[str, Any]) -> str:
    turns = measured["turns"]
    rows = []
    for form in turns[0]:
        loads = [turn[form]["on"] for turn in turns]
        rows.append(
            (
                form,
                rate_and_latencies([turn[form]["off"] for turn in turns]),
                rate_and_latencies(loads),
                spread(served_log_ratios(measured, form), ".2f"),
                spread([load["writer"] for load in loads], ".1%"),
                f"{_median(loads, lambda load: load['logged_bytes'] / 1024):,.1f}",
                f"{sum(load['dropped'] for load in loads):,.0f}",
            )
        )
    return section(
        "Served log",
        f"{_caption(about)} {measured['candidates']} candidates, {measured['clients']} clients, closed loop, a file "
        f"every {measured['interval']:g} s. Requests/s, then p50 / p99 in milliseconds. Writer: share of the "
        "log's thread in the CPU time of the service. KiB: size of the files per request.",
        ("form", "off", "on", "on / off", "writer", "KiB", "dropped"),
        rows,
    )


TABLES: dict[str, Table] = {
    "engines": _engines,
    "http": _http,
    "bare": _engine_only,
    "open": _open_loop,
    "batching": _batching,
    "overload": _overload,
    "attacks": _attacks,
    "served": _served_log,
}
"""Part → formatter of its table."""


def _caption(about: dict[str, Any]) -> str:
    measured = about["measured"]
    turns = measured["turns"] if "turns" in measured else next(iter(next(iter(measured["sizes"].values())).values()))
    return f"{cores(about['threads'])}. {caption_of_turns(turns)}"


def _medians(loads: Sequence[dict[str, Any]], *keys: str) -> list[float]:
    return [statistics.median(load[key] for load in loads) for key in keys]


def _median(loads: Sequence[dict[str, Any]], value: Callable[[dict[str, Any]], float]) -> float:
    return statistics.median(map(value, loads))
