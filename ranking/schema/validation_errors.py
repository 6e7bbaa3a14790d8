"""Configuration errors as a person reads them: by the names in the document, with the mend."""

from __future__ import annotations

import re
from datetime import date, time
from typing import Any

from pydantic import ValidationError

EXPECTED = {
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be text in quotes",
    "tuple_type": "must be a list",
    "model_type": "must be a table of keys and values",
    "model_attributes_type": "must be a table of keys and values",
    "dict_type": "must be a table of keys and values",
    "literal_error": "choose {expected}",
    "greater_than": "must be greater than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be less than {lt:g}",
    "less_than_equal": "must be at most {le:g}",
}
"""What each of pydantic's complaints means to whoever wrote the document."""

DECLARED = {("features",): "[[features]]", ("tasks",): "[[tasks]]"}
"""Lists that TOML writes as tables of their own."""


def format_validation_error(error: ValidationError, data: Any) -> str:
    """One readable line for a pydantic error: each problem by the names in the document, not by index."""
    errors = error.errors()
    containers = {problem["loc"][:depth] for problem in errors for depth in range(len(problem["loc"]))}
    problems = []
    for problem in errors:
        if problem["type"] == "too_short" and problem["loc"] in containers:
            continue  # pydantic counts the valid entries only
        path, branch, written = _place(problem, data)
        if written:  # else the value is that of another key, and wrong there too
            problems.append(": ".join([*([".".join(path)] if path else []), _plain(problem, branch)]))
    return "; ".join(problems)


def _place(problem: Any, data: Any) -> tuple[list[str], str, bool]:
    """Where a problem is in the document, the branch of a union that found it, and whether the document says it."""
    place, path, branch, written = data, [], "", True
    loc, missing = problem["loc"], problem["type"] == "missing"
    of_a_value = missing or not isinstance(problem["input"], dict)
    for depth, key in enumerate(loc, start=1):
        if (isinstance(place, dict) and key in place) or (isinstance(place, list) and isinstance(key, int)):
            place = place[key]
            name = place.get("name") if isinstance(place, dict) else None
            if isinstance(key, str):
                path.append(_key(key))
            elif isinstance(name, str):
                path.append(f"'{name}'")
            else:
                path[-1] += f" (entry {key + 1})"
        elif isinstance(place, dict) and depth == len(loc) and of_a_value:
            path.append(_key(str(key)))
            written = missing
        else:
            branch = f" of kind '{key}'"
    return path, branch, written


def _key(key: str) -> str:
    """A key as the document writes it: in quotes if it holds dots."""
    return key if re.fullmatch(r"[\w-]+", key) else f'"{key}"'


def _plain(problem: Any, branch: str) -> str:
    where = problem["loc"]
    got = f"(got {_shown(problem['input'])})"
    match problem["type"]:
        case "extra_forbidden":
            return f"unknown key{branch}"
        case "missing" if where in DECLARED:
            return f"missing; declare at least one, each under {DECLARED[where]}"
        case "missing":
            return "missing; choose user, item or context" if where[-1] == "owner" else "missing"
        case "too_short" if where in DECLARED:
            return f"declare at least one, each under {DECLARED[where]}"
        case "too_short":
            least = problem["ctx"]["min_length"]
            return f"must hold at least {least} {'entry' if least == 1 else 'entries'} {got}"
        case "tuple_type" if where in DECLARED:
            return f"must be a list of tables: write each under {DECLARED[where]}"
        case "string_too_short":
            return "must not be empty"
        case "union_tag_not_found" if not isinstance(problem["input"], dict):
            return f"must be a table with a kind {got}"
        case "union_tag_not_found" if where[0] == "features":
            return "kind is missing; choose categorical, bag, sequence, numeric, buckets or cross"
        case "union_tag_not_found":
            return "kind is missing"
        case "union_tag_invalid":
            expected = problem["ctx"]["expected_tags"].replace("'", "")
            return f"kind is {problem['ctx']['tag']!r}; choose {' or '.join(expected.rsplit(', ', 1))}"
        case "value_error":
            return str(problem["ctx"]["error"])
        case known if known in EXPECTED:
            return f"{EXPECTED[known].format(**problem.get('ctx', {}))} {got}"
        case _:
            return f"{problem['msg']} {got}"


def _shown(value: Any) -> str:
    """A value nearly as TOML writes it, cut short."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, date | time):
        return value.isoformat()
    return f"{value!r:.60}"
