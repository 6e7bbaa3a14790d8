"""Configuration errors as a person reads them: by the names in the document, with the mend."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError


def explain(error: ValidationError, data: Any) -> str:
    """One readable line for a pydantic error: each problem by the names in the document, not by index."""
    problems = []
    errors = error.errors()
    containers = {problem["loc"][:depth] for problem in errors for depth in range(len(problem["loc"]))}
    for problem in errors:
        if problem["type"] == "too_short" and problem["loc"] in containers:
            continue  # pydantic counts the valid entries only
        place: Any = data
        path: list[str] = []
        branch = ""
        for depth, key in enumerate(problem["loc"], start=1):
            inside = isinstance(place, (dict, list)) and (
                (isinstance(place, list) and isinstance(key, int) and key < len(place)) or key in place
            )
            absent = problem["type"] == "missing" and depth == len(problem["loc"])
            if inside:
                place = place[key]
                name = place.get("name") if isinstance(place, dict) else None
                path.append(f"'{name}'" if name and isinstance(key, int) else str(key))
            elif absent or not isinstance(place, dict):
                path.append(str(key))
            else:  # a union's branch, which is no part of the document
                branch = f" of kind '{key}'"
        problems.append(": ".join([*([".".join(path)] if path else []), _plain(problem, branch)]))
    return "; ".join(problems)


def _plain(problem: Any, branch: str) -> str:
    match problem["type"]:
        case "extra_forbidden":
            return f"unknown key{branch}"
        case "missing":
            key = problem["loc"][-1]
            return "missing; choose user, item or context" if key == "owner" else "missing"
        case "union_tag_not_found" if not isinstance(problem["input"], dict):
            return f"must be a table with a kind, not {problem['input']!r}"
        case "union_tag_not_found":
            return "kind is missing; choose categorical, bag, sequence, numeric, buckets or cross"
        case "union_tag_invalid":
            expected = problem["ctx"]["expected_tags"].replace("'", "")
            return f"kind is {problem['ctx']['tag']!r}; choose {' or '.join(expected.rsplit(', ', 1))}"
        case "value_error":
            return str(problem["ctx"]["error"])
        case _:
            return f"{problem['msg']} (got {problem['input']!r})"
