"""Messages that the documentation quotes are those of the code, so that a reader finds them by searching the log."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md")] + sorted((ROOT / "docs").glob("*.md"))
PLACEHOLDER = "\0"
"""Stands for the formatted parts of a message in the code."""

COMMANDS = {
    "cosign",
    "docker",
    "helm",
    "make",
    "nginx",
    "pip",
    "pytest",
    "python",
    "ranker",
    "redis-cli",
    "source",
    "SLOWLOG",
}
"""First words of code spans that are command lines."""

VARIABLE = re.compile(r"…|\b(?:PID|N|NAME)\b|\d+|'[^']*'")
"""Parts of a quoted message that differ from case to case: dots, ``PID``, numbers and quoted names."""


@cache
def messages_of_the_code() -> list[str]:
    """All string literals of the packages, with ``PLACEHOLDER`` for each formatted part."""
    files = chain.from_iterable((ROOT / package).rglob("*.py") for package in ("ranking", "service", "pipelines"))
    trees = (ast.parse(file.read_text()) for file in [*files, *(ROOT / ".ci").glob("*.py")])
    return list(dict.fromkeys(message for tree in trees for message in literals(tree)))


def literals(tree: ast.AST) -> Iterator[str]:
    """String literals and f-strings of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.sub(r"%(?:\.\d+)?[sdrf]", PLACEHOLDER, node.value)
        elif isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else PLACEHOLDER for part in node.values)


def quoted_messages(page: str) -> list[str]:
    """Messages that a page quotes: code spans that are prose, and the field ``message`` of log lines in code blocks."""
    prose, blocks = [], []
    for index, part in enumerate(re.split(r"^```.*$", page, flags=re.MULTILINE)):
        (blocks if index % 2 else prose).append(part)
    spans = [" ".join(span.split()) for span in re.findall(r"`((?:[^`\n]|\n(?!\n))+)`", "\n\n".join(prose))]
    logged = re.findall(r'"message": ("(?:[^"\\]|\\.)*")', "\n".join(blocks))
    return [span for span in spans if is_message(span)] + [json.loads(text) for text in logged]


def is_message(span: str) -> bool:
    """Whether a code span is a sentence or part of one, as opposed to a command, a path or an expression."""
    words = span.split()
    prose = re.fullmatch(r"(?:… )?[A-Za-z][A-Za-z0-9 ,:;.()'…-]*", span) is not None and " -" not in span
    return prose and len(words) > 1 and words[0] not in COMMANDS and not words[0].endswith(":")


def occurs(quote: str, message: str) -> bool:
    """Whether a message of the code can read as quoted.

    Either the message contains the fixed parts of the quote in this order, or the quote is the message with its
    formatted parts filled in. The second case requires two fixed words, so that ``%s: %s`` does not match everything.
    """
    if contains_in_order(message, fixed_parts(quote)):
        return True
    filled = filled_message(message)
    return filled is not None and filled.fullmatch(quote) is not None


def contains_in_order(message: str, parts: list[str]) -> bool:
    """Return whether a message contains the parts one after another."""
    end = 0
    for part in parts:
        begin = message.find(part, end)
        if begin < 0:
            return False
        end = begin + len(part)
    return True


@cache
def fixed_parts(quote: str) -> list[str]:
    """Return the parts of a quoted message that are the same in every case."""
    fragments = [fragment.strip(" :;,.") for fragment in VARIABLE.split(quote)]
    return [fragment for fragment in fragments if fragment]


@cache
def filled_message(message: str) -> re.Pattern[str] | None:
    """Return the pattern of a message whose formatted parts are filled in.

    None if it has no formatted parts or less than two fixed words.
    """
    if PLACEHOLDER not in message or len(re.findall(r"[a-z]{2,}", message)) < 2:
        return None
    return re.compile(".+".join(re.escape(part) for part in message.split(PLACEHOLDER)))


def test_quoted_messages_exist_in_the_code() -> None:
    unknown = [
        (page.name, quote)
        for page in PAGES
        for quote in quoted_messages(page.read_text())
        if not any(occurs(quote, message) for message in messages_of_the_code())
    ]
    assert not unknown


def test_quoted_messages_finds_log_lines_and_skips_commands() -> None:
    page = """The log has `rejected version 4 of 'feed': …` or `request failed`. Run `ranker items load`, `make test` or
`pip install -r a.lock`; set `max_body_bytes`. It ends with `closed the
connection`.

```json
{"level": "warning", "message": "slow request", "tasks": "all"}
```
"""
    assert quoted_messages(page) == [
        "rejected version 4 of 'feed': …",
        "request failed",
        "closed the connection",
        "slow request",
    ]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("f'rejected version {version} of {name!r}: {error}'", True),
        ("log.info('rejected version %s of %r: %s', version, name, error)", True),
        ("log.error('rejected %s of \\'%s\\': %s', subject, name, error)", True),
        ("log.error('%s of %s', subject, name)", False),
        ("f'rejected {name!r} version {version}'", False),
        ("'another message'", False),
        ("f'declined version {version} of {name!r}'", False),
    ],
)
def test_occurs_compares_the_fixed_parts_in_order(code: str, expected: bool) -> None:
    assert any(occurs("rejected version 4 of 'feed': …", text) for text in literals(ast.parse(code))) is expected


def test_incidents_page_quotes_messages() -> None:
    assert len(quoted_messages((ROOT / "docs" / "incidents.md").read_text())) >= 8
