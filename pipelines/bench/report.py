"""Format the results of ``ranker bench`` as Markdown tables."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipelines.bench.tables import cores, plural, section, spread, three_digits

STAGES = ("parse", "look-up", "queue", "forward", "write")

Table = Callable[[dict[str, Any], dict[str, Any]], str]
"""(measured values of a part, its whole results) → Markdown."""


def format_tables(results: dict[str, Any], tables: Mapping[str, Table] | None = None) -> str:
    """Format the tables of all measured parts; ``tables`` maps parts to formatters (default: ``TABLES``)."""
    tables = TABLES if tables is None else tables
    return "\n".join(
        table(results[part]["measured"], results[part]) for part, table in tables.items() if part in results
    )


def caption(about: Mapping[str, Any]) -> str:
    """Describe the resources of the measured process and how values of several turns are combined."""
    return f"{cores(about['threads'])}. {caption_of_turns(about['measured']['turns'])}"


def caption_of_turns(turns: Sequence[Any]) -> str:
    """Describe how values of several turns are combined."""
    return f"Medians of {plural(len(turns), 'turn')}."


def medians(loads: Sequence[Mapping[str, Any]], *keys: str) -> list[float]:
    """Return the median of each of these values over several loads."""
    return [statistics.median(load[key] for load in loads) for key in keys]


def rate_and_latencies(loads: Sequence[dict[str, Any]]) -> str:
    """Format requests/s, p50 and p99 of loads, and the number of failed requests if there are any."""
    rate, p50, p99 = medians(loads, "per_second", "p50", "p99")
    failed = sum(sum(load["failed"].values()) for load in loads)
    return f"{rate:,.0f}, {three_digits(p50)} / {three_digits(p99)}" + (f" ({failed} failed)" if failed else "")


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
        f"{caption(about)} Each cell shows requests/s, then p50 / p99 in milliseconds, by number of clients.",
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
            stages = medians([load["stages"] for load in loads], *STAGES)
            cpu, size = medians(loads, "cpu", "bytes")
            rows.append((form, f"{candidates:,}", *map(three_digits, stages), three_digits(cpu), f"{size / 1024:,.0f}"))
    return section(
        "Stages of a request",
        f"{caption(about)} Milliseconds per stage, as the service reports them with {plural(clients, 'client')}. "
        "CPU is the CPU time of the service per request, in milliseconds; KiB is the size of the response body.",
        ("form", "candidates", *STAGES, "CPU", "KiB"),
        rows,
    )


def _open_loop(measured: dict[str, Any], about: dict[str, Any]) -> str:
    turns = measured["turns"]
    rows = []
    for candidates in measured["candidates"]:
        for share in measured["shares"]:
            loads = [turn[f"{candidates} {share}"] for turn in turns]
            tails = spread([load["p99"] / load["p50"] for load in loads], ".1f")
            rate, p50, p99 = medians(loads, "per_second", "p50", "p99")
            rows.append(
                (f"{candidates:,}", f"{share:.0%}", f"{rate:,.0f}", three_digits(p50), three_digits(p99), tails)
            )
    return section(
        "Over HTTP, open loop",
        f"{caption(about)} Poisson arrivals at a share of the peak, which is the rate of 64 clients in a closed loop; "
        f"{measured['form']}. Milliseconds count from the time at which a request was due.",
        ("candidates", "of peak", "requests/s", "p50", "p99", "p99 / p50"),
        rows,
    )


TABLES: dict[str, Table] = {"http": _http, "open": _open_loop}
"""Part → formatter of its table."""
