"""Format pydantic validation errors as messages that name the configuration key and the fix."""

from __future__ import annotations

import difflib
import re
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError

from ranking.schema.models_at import models_at
from ranking.schema.value_text import value_text

MESSAGES = {
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "int_from_float": "must be a whole number",
    "string_type": "must be text in quotes",
    "path_type": "must be text in quotes",
    "tuple_type": "must be a list{example}",
    "frozen_set_type": "must be a list, or text with commas",
    "model_type": "must be a table of keys and values{example}",
    "model_attributes_type": "must be a table of keys and values{example}",
    "dict_type": "must be a table of keys and values",
    "literal_error": "choose {expected}",
    "greater_than": "must be greater than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be less than {lt:g}",
    "less_than_equal": "must be at most {le:g}",
}
"""Messages of pydantic error types."""

MISSING = {
    "hash_buckets": "; give the number of rows of its embedding table, such as hash_buckets = 100000",
    "boundaries": "; give the increasing limits between the buckets, such as boundaries = [1, 10, 100]",
}
"""Fixes of missing keys."""

ARRAYS_OF_TABLES = {(key,): f"[[{key}]]" for key in ("counters", "histories", "features", "tasks")}
"""Lists that TOML writes as arrays of tables."""


def format_validation_error(error: ValidationError, data: Any, model: type[BaseModel] | None = None) -> str:
    """Format a pydantic error as one line that names keys and features as the configuration does, not by index.

    Args:
        error: the validation error.
        data: the configuration that was validated.
        model: model of the configuration, for suggestions.
    """
    errors = error.errors()
    containers = {problem["loc"][:depth] for problem in errors for depth in range(len(problem["loc"]))}
    problems = []
    for problem in errors:
        if problem["type"] == "too_short" and problem["loc"] in containers:
            continue  # pydantic counts only valid entries, so a list of invalid entries is "too short".
        path, branch, is_present = _locate(problem, data)
        if is_present:  # Otherwise the value is the default from another key, which is reported itself.
            problems.append(": ".join([*([".".join(path)] if path else []), _message(problem, branch, model)]))
    return "; ".join(problems)


def _locate(problem: Any, data: Any) -> tuple[list[str], str, bool]:
    """Return the path of a problem, the union branch that reported it, and whether the configuration sets the key."""
    node, path, branch, is_present = data, [], "", True
    loc, is_missing = problem["loc"], problem["type"] == "missing"
    is_leaf = is_missing or not isinstance(problem["input"], dict)
    for depth, key in enumerate(loc, start=1):
        if (isinstance(node, dict) and key in node) or (isinstance(node, list) and isinstance(key, int)):
            node = node[key]
            name = node.get("name") if isinstance(node, dict) else None
            if isinstance(key, str):
                path.append(_quoted_key(key))
            elif isinstance(name, str):
                path.append(f"'{name}'")
            else:
                path[-1] += f" (entry {key + 1})"
        elif isinstance(node, dict) and depth == len(loc) and is_leaf:
            path.append(_quoted_key(str(key)))
            is_present = is_missing
        else:
            branch = f" of kind '{key}'"
    return path, branch, is_present


def _quoted_key(key: str) -> str:
    """Return a key as TOML writes it, in quotes if it holds dots."""
    return key if re.fullmatch(r"[\w-]+", key) else f'"{key}"'


def _message(problem: Any, branch: str, model: type[BaseModel] | None) -> str:
    loc, example = problem["loc"], ""
    value = value_text(problem["input"])
    got = f"(got {value})"
    match problem["type"]:
        case "extra_forbidden":
            similar = difflib.get_close_matches(str(loc[-1]), _keys(model, loc[:-1]), 1, cutoff=0.75)
            return f"unknown key{branch}" + (f"; did you mean '{similar[0]}'?" if similar else "")
        case "missing" if loc in ARRAYS_OF_TABLES:
            return f"missing; declare at least one, each under {ARRAYS_OF_TABLES[loc]}"
        case "missing":
            return f"missing{MISSING.get(loc[-1]) or _choices(model, loc)}"
        case "too_short" if loc in ARRAYS_OF_TABLES:
            return f"declare at least one, each under {ARRAYS_OF_TABLES[loc]}"
        case "too_short":
            count = problem["ctx"]["min_length"]
            return f"must hold at least {count} {'entry' if count == 1 else 'entries'} {got}"
        case "tuple_type" if loc in ARRAYS_OF_TABLES:
            return f"must be a list of tables: write each under {ARRAYS_OF_TABLES[loc]}"
        case "string_too_short":
            return "must not be empty"
        case "union_tag_not_found" if not isinstance(problem["input"], dict):
            example = f", such as {{ kind = {value} }}" if isinstance(problem["input"], str) else ""
            return f"must be a table with a kind{example} {got}"
        case "union_tag_not_found" if loc[0] == "features":
            return "kind is missing; choose categorical, bag, sequence, numeric, buckets or cross"
        case "union_tag_not_found":
            return "kind is missing"
        case "union_tag_invalid":
            expected = problem["ctx"]["expected_tags"].replace("'", "")
            return f"kind is {value_text(problem['input'].get('kind'))}; choose {' or '.join(expected.rsplit(', ', 1))}"
        case "value_error":
            return str(problem["ctx"]["error"])
        case kind if kind in MESSAGES:
            if kind == "tuple_type" and isinstance(problem["input"], str | int | float):
                example = f", such as [{value}]"
            elif kind.startswith("model"):
                example = _example(model, loc)
            return f"{MESSAGES[kind].format(**problem.get('ctx', {}), example=example)} {got}"
        case _:
            return f"{problem['msg']} {got}"


def _keys(model: type[BaseModel] | None, place: tuple[int | str, ...]) -> list[str]:
    """Return the keys that a table may have."""
    return [] if model is None else [key for found in models_at(model, place) for key in found.model_fields]


def _choices(model: type[BaseModel] | None, place: tuple[int | str, ...]) -> str:
    """Return the values that a missing key may have, as the rest of a message; empty if they are not listed."""
    fields = [] if model is None else [found.model_fields.get(str(place[-1])) for found in models_at(model, place[:-1])]
    kinds = [field.annotation for field in fields if field is not None and get_origin(field.annotation) is Literal]
    choices = ", ".join(dict.fromkeys(str(value) for kind in kinds for value in get_args(kind)))
    return f"; choose {' or '.join(choices.rsplit(', ', 1))}" if choices else ""


def _example(model: type[BaseModel] | None, place: tuple[int | str, ...]) -> str:
    """Return a table that a place may hold, as the rest of a message; empty if no key has a number or text."""
    models = [] if model is None else models_at(model, place)
    for key, field in models[0].model_fields.items() if len(models) == 1 else ():
        if isinstance(field.default, int | float | str):
            return f", such as {{ {key} = {value_text(field.default)} }}"
    return ""
