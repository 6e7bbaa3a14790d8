"""Wheels without content, and package indexes in folders."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from urllib.parse import quote


def write_wheel(folder: Path, name: str, version: str, tag: str = "py3-none-any") -> Path:
    """Write a wheel of a package that contains nothing."""
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        info = f"{name}-{version}.dist-info"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


def publish_wheels(index: Path, name: str, version: str, *tags: str) -> dict[str, str]:
    """Add one wheel per tag to an index. Returns the SHA-256 digests by tag."""
    folder = index / name
    folder.mkdir(parents=True, exist_ok=True)
    digests = {tag: digest_of(write_wheel(folder, name, version, tag)) for tag in tags}
    links = "".join(
        f'<a href="{quote(path.name)}#sha256={digest_of(path)}">{path.name}</a>' for path in folder.glob("*.whl")
    )
    (folder / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
    return digests


def digest_of(path: Path) -> str:
    """SHA-256 digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
