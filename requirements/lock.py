"""Change pins of the lock files and fill in their hashes.

    make lock                                 add hashes to the pins that have none
    make lock PINS="idna==3.21 rich==15.1.0"  change these pins in every lock file, with their hashes

Hashes of other pins stay as they are, so that a file uploaded later under a locked version is not trusted. The hashes
are those of the wheels for the supported platforms, or of the source archive if a package has no wheel. uv reads them
from the package index; its environment variables, such as ``UV_DEFAULT_INDEX``, select another index.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

FOLDER = Path(__file__).parent
PYTHONS = ((3, 11), (3, 12), (3, 13))
MACHINES = ("x86_64", "aarch64")
INTERPRETERS = {
    (tag.interpreter, tag.abi)
    for major, minor in PYTHONS
    for tags in (
        cpython_tags((major, minor), abis=[f"cp{major}{minor}"], platforms=["any"]),
        compatible_tags((major, minor), interpreter=f"cp{major}{minor}", platforms=["any"]),
    )
    for tag in tags
}
"""Pairs of interpreter and ABI that the supported versions of CPython can load."""


class LockError(Exception):
    """A lock file or a pin is invalid."""


@dataclass(frozen=True)
class Pin:
    """One pinned package.

    Attributes:
        version: exact version.
        marker: environment marker, or an empty string.
        hashes: allowed SHA-256 digests, sorted.
    """

    version: str
    marker: str = ""
    hashes: tuple[str, ...] = ()


@dataclass
class Lock:
    """A lock file: comments and included files, then the pins by package."""

    path: Path
    header: list[str] = field(default_factory=list)
    pins: dict[str, Pin] = field(default_factory=dict)

    @property
    def includes(self) -> list[str]:
        """Names of the lock files that this one includes."""
        return [line.removeprefix("-r ") for line in self.header if line.startswith("-r ")]

    def write(self) -> None:
        """Replace the file."""
        lines = list(self.header)
        for name, pin in sorted(self.pins.items()):
            requirement = f"{name}=={pin.version}" + (f"; {pin.marker}" if pin.marker else "")
            lines.append(" \\\n".join([requirement, *(f"    --hash=sha256:{digest}" for digest in pin.hashes)]))
        self.path.write_text("\n".join(lines) + "\n")


def read_lock(path: Path) -> Lock:
    """Parse a lock file.

    Raises:
        LockError: a line is neither a comment, an included file nor an exact pin with hashes.
    """
    lock = Lock(path)
    for line in path.read_text().replace("\\\n", " ").splitlines():
        if not line or line.startswith(("#", "-r ")):
            lock.header.append(line)
            continue
        match = re.fullmatch(r"([a-z0-9.-]+)==([^\s;]+)(?:; ([^\\]*?))?((?:\s+--hash=sha256:[0-9a-f]{64})*)\s*", line)
        if match is None:
            raise LockError(f"{path.name}: '{line[:80]}' is not an exact pin such as 'idna==3.20'")
        name, version, marker, hashes = match.groups()
        lock.pins[canonicalize_name(name)] = Pin(version, marker or "", tuple(re.findall("[0-9a-f]{64}", hashes)))
    return lock


def read_pins(path: Path) -> dict[str, Pin]:
    """Return all pins of a lock file and of those that it includes.

    Raises:
        LockError: a line is invalid, or two files pin one package differently.
    """
    lock = read_lock(path)
    pins: dict[str, Pin] = {}
    for included in [*(read_pins(path.parent / name) for name in lock.includes), lock.pins]:
        for name, pin in included.items():
            if pins.setdefault(name, pin) != pin:
                raise LockError(f"{path.name}: two pins of {name} differ")
    return pins


def supports(tag: Tag) -> bool:
    """Whether a wheel with this tag can be installed on a supported platform."""
    platform = tag.platform == "any" or (
        tag.platform.startswith(("manylinux", "linux")) and tag.platform.endswith(MACHINES)
    )
    return platform and (tag.interpreter, tag.abi) in INTERPRETERS


def find_hashes(requirements: Collection[str], indexes: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Ask the index for the hashes of exact requirements, such as ``idna==3.20``.

    Args:
        requirements: exact requirements without markers.
        indexes: addresses of indexes in addition to the default one.

    Returns:
        Sorted SHA-256 digests by requirement.

    Raises:
        LockError: the index does not have a version, or has no file of it for a supported platform.
    """
    if not requirements:
        return {}
    command = ["uv", "pip", "compile", "--quiet", "--no-config", "--no-deps", "--universal", "--python-version", "3.11"]
    command += ["--format", "pylock.toml", "--index-strategy", "unsafe-best-match"]
    command += [word for index in indexes for word in ("--index", index)]
    result = subprocess.run([*command, "-"], input="\n".join(requirements), capture_output=True, text=True, check=False)
    if result.returncode:
        raise LockError(result.stderr.strip())
    hashes = {}
    for package in tomllib.loads(result.stdout)["packages"]:
        digests = {
            wheel["hashes"]["sha256"]
            for wheel in package.get("wheels", ())
            if any(map(supports, parse_wheel_filename(unquote(wheel["url"].rsplit("/")[-1]))[3]))
        }
        if not digests and "sdist" in package:
            digests = {package["sdist"]["hashes"]["sha256"]}
        requirement = f"{package['name']}=={package['version']}"
        if not digests:
            raise LockError(f"{requirement}: the index has no wheel for {' or '.join(MACHINES)} and no source archive")
        hashes[requirement] = tuple(sorted(digests))
    return hashes


def change_pins(locks: list[Lock], requirements: list[str]) -> None:
    """Set the version of packages in all lock files that contain them, and drop the hashes of the old versions.

    Each pin keeps its local version, such as the ``+cpu`` of a CPU build.

    Raises:
        LockError: a requirement is not exact, or no lock file contains the package.
    """
    for requirement in requirements:
        name, separator, version = requirement.partition("==")
        name = canonicalize_name(name)
        if not separator or not version:
            raise LockError(f"'{requirement}' is not an exact pin such as 'idna==3.20'")
        matches = [lock for lock in locks if name in lock.pins]
        if not matches:
            raise LockError(f"no lock file contains {name}: add the line '{requirement}' to one of them first")
        for lock in matches:
            pin = lock.pins[name]
            _, plus, local = pin.version.partition("+")
            if pin.version != version + plus + local:
                lock.pins[name] = Pin(version + plus + local, pin.marker)


def main() -> None:
    """Update the lock files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pins", nargs="*", metavar="NAME==VERSION", help="pins to change")
    parser.add_argument("--index", action="append", default=[], help="index of CPU builds, to change torch")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of the lock files")
    arguments = parser.parse_args()
    try:
        locks = [read_lock(path) for path in sorted(arguments.folder.glob("*.lock"))]
        change_pins(locks, arguments.pins)
        incomplete = [(lock, name) for lock in locks for name, pin in lock.pins.items() if not pin.hashes]
        hashes: dict[str, tuple[str, ...]] = {}
        for lock in locks:  # One by one, because environments of their own may pin other versions.
            builds = {f"{name}=={pin.version}" for name, pin in lock.pins.items() if not pin.hashes}
            cpu_builds = {build for build in builds if build.endswith("+cpu")}
            hashes |= find_hashes(builds - cpu_builds, []) | find_hashes(cpu_builds, arguments.index)
            if other := builds - hashes.keys():
                raise LockError(f"write versions as the index does: it has no {', '.join(sorted(other))} by this name")
    except LockError as error:
        sys.exit(f"lock: {error}")
    if not incomplete:
        print("every pin has hashes, nothing to change")
    for lock, name in incomplete:
        pin = lock.pins[name] = replace(lock.pins[name], hashes=hashes[f"{name}=={lock.pins[name].version}"])
        print(f"{lock.path.name}: {name} {pin.version}, {len(pin.hashes)} files")
    for lock in locks:
        lock.write()


if __name__ == "__main__":
    main()
