"""Write the generated parts of a Markdown document."""

from __future__ import annotations

from pathlib import Path


def replace_part(file: Path, name: str, text: str) -> None:
    """Replace a generated part of a document, or append it if the document has no such part.

    Args:
        file: the document; created if it does not exist.
        name: name of the part, in the comments that delimit it.
        text: new content of the part.
    """
    start, end = f"<!-- {name}: measured -->\n", f"<!-- {name}: end -->\n"
    document = file.read_text() if file.exists() else "# Benchmarks\n"
    before, delimiter, after = document.partition(start)
    if not delimiter:
        before += "\n"
    file.write_text(before + start + "\n" + text + "\n" + end + after.partition(end)[2])
