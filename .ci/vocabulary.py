"""Report words and phrases that the writing rules exclude (CONTRIBUTING.md, "Writing").

Reads the text files that git tracks and prints one line per match; exits with 1 if there is a match.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SUFFIXES = {".md", ".py", ".toml", ".yaml", ".yml", ".txt", ".jinja", ".json", ".css", ""}
SKIPPED = ("docs/results/", "tests/fixtures/", ".ci/vocabulary.py", "LICENSE", "requirements/")
UNIT = r"(?:row|request|step|task|line|file|second|process|page|user|item|candidate|batch|id|cell|test|gate|group)"

EXCLUDED = {
    r"\bwhoever\b": "name the component or the reader",
    r"\bwhosoever\b": "name the component or the reader",
    r"\blest\b": "write 'so that … not'",
    r"(?<![a-z])mend(?:s|ed|ing)?(?![a-z])": "write 'fix'",
    r"(?<![a-z])refus(?:e|es|ed|al|als|ing)(?![a-z])": "write 'reject'",
    r"\b(?:is|are|was|were|be) no (?!longer\b|more\b|fewer\b|less\b|one\b)": "write 'is not a …' or 'there is no …'",
    r"\bwhat is told\b": "say what is recorded, logged or returned",
    rf"\b(?:an? )?{UNIT} (?:a|an) {UNIT}\b": "write 'per'",
    r"\bfor ever\b": "write 'indefinitely' or 'forever'",
    r"\bthe house\b": "write 'the architecture'",
}
ALLOWED = re.compile(
    r"connection refused|ECONNREFUSED|ConnectionRefusedError|there (?:is|are|was|were) no ", re.IGNORECASE
)


def matches(text: str) -> list[tuple[int, str, str]]:
    """Return (line number, matched text, advice) for each excluded phrase in a text."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        cleaned = ALLOWED.sub("", line)
        for pattern, advice in EXCLUDED.items():
            found += [(number, match.group(), advice) for match in re.finditer(pattern, cleaned, re.IGNORECASE)]
    return found


def main() -> int:
    """Check all tracked text files and return the exit code."""
    names = subprocess.run(["git", "ls-files"], check=True, capture_output=True, text=True).stdout.splitlines()
    failures = 0
    for name in names:
        path = Path(name)
        if name.startswith(SKIPPED) or path.suffix not in SUFFIXES or path.is_symlink() or not path.is_file():
            continue
        for number, phrase, advice in matches(path.read_text(encoding="utf-8")):
            print(f"{name}:{number}: '{phrase.strip()}': {advice}")
            failures += 1
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
