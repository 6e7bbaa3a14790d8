"""Write the generated parts of docs/architecture.md: the diagram of the imports between folders, and the list of files.

``python .ci/architecture.py`` replaces them; ``tests/test_architecture.py`` checks that they are current.
"""

from __future__ import annotations

import re
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "architecture.md"
PACKAGES = ("pipelines", "service", "ranking")
BLOCK = re.compile(r"(<!-- (diagram|files): start -->\n).*?(<!-- \2: end -->)", re.DOTALL)

Edges = set[tuple[str, str]]


def folder_imports(graph: grimp.ImportGraph) -> Edges:
    """Return which folder (or top-level file) of a package imports which, across all packages."""
    edges: Edges = set()
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            importer_folder, imported_folder = folder_of(module), folder_of(imported)
            if importer_folder != imported_folder and importer_folder and imported_folder:
                edges.add((importer_folder, imported_folder))
    return edges


def folder_of(module: str) -> str | None:
    """Return ``package.folder`` of a module, or None for a package's own ``__init__``."""
    parts = module.split(".")
    return ".".join(parts[:2]) if len(parts) > 1 else None


def without_implied(edges: Edges) -> Edges:
    """Remove each edge that a longer path implies (transitive reduction of an acyclic graph)."""
    targets: dict[str, set[str]] = {}
    for importer, imported in edges:
        targets.setdefault(importer, set()).add(imported)

    def reachable(start: str) -> set[str]:
        reached: set[str] = set()
        stack = [start]
        while stack:
            for target in targets.get(stack.pop(), set()) - reached:
                reached.add(target)
                stack.append(target)
        return reached

    return {
        (importer, imported)
        for importer, imported in edges
        if not any(imported in reachable(other) for other in targets[importer] - {imported})
    }


def mermaid() -> str:
    """Return the diagram as a fenced Mermaid block."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    edges = folder_imports(graph)
    within = {edge for edge in edges if edge[0].split(".")[0] == edge[1].split(".")[0]}
    lines = ["```mermaid", "flowchart TD"]
    for package in PACKAGES:
        folders = sorted(
            {folder for module in graph.modules if (folder := folder_of(module)) and folder.startswith(f"{package}.")}
        )
        lines.append(f"  subgraph {package}")
        lines += [f'    {folder.replace(".", "_")}["{folder.split(".")[1]}"]' for folder in folders]
        lines += [
            f"    {importer} --> {imported}".replace(".", "_")
            for importer, imported in sorted(without_implied(within))
            if importer.startswith(f"{package}.")
        ]
        lines.append("  end")
    lines += ["  pipelines ==> ranking", "  service ==> ranking", "```"]
    return "\n".join(lines) + "\n"


def file_list() -> str:
    """Return the names of the files of each folder as a Markdown list."""
    names: dict[str, list[str]] = {}
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("[!_]*.py")):
            names.setdefault(file.parent.relative_to(ROOT).as_posix(), []).append(file.stem)
    return "".join(f"- `{folder}/`: {', '.join(files)}\n" for folder, files in sorted(names.items()))


def current_page() -> str:
    """Return the text of the document with generated parts that match the code."""
    parts = {"diagram": mermaid(), "files": file_list()}
    return BLOCK.sub(lambda match: match[1] + parts[match[2]] + match[3], DOCUMENT.read_text(encoding="utf-8"))


def main() -> None:
    """Replace the generated parts."""
    DOCUMENT.write_text(current_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
