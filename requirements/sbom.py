"""Write the software bill of materials (SBOM) of each CPU image in CycloneDX JSON.

    python -m requirements.sbom FOLDER

cyclonedx-py describes the environment of this interpreter, which contains the packages of all images. The SBOM of an
image keeps the packages of its lock file. An installed package of another version than the pinned one is an error.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from requirements.lock import FOLDER, LockError, Pin, read_pins

IMAGES = ("serve", "slim", "train")
"""Lock files of the images. The Dockerfile's build arguments name them."""


def describe_environment() -> dict[str, Any]:
    """Return the CycloneDX document of all packages in the environment of this interpreter.

    The document has no time and no random identifier, so that equal environments have equal documents.
    """
    command = ["cyclonedx-py", "environment", "--pyproject", str(FOLDER.parent / "pyproject.toml")]
    # The validation takes a minute per document. A test validates the documents instead.
    command += ["--output-reproducible", "--no-validate", sys.executable]
    document: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return document


def keep_packages(document: dict[str, Any], pins: dict[str, Pin]) -> dict[str, Any]:
    """Return the document with only the packages of a lock file.

    Raises:
        LockError: a pinned package is missing, or is installed in another version.
    """
    installed: dict[str, Any] = {
        canonicalize_name(component["name"]): component for component in document["components"]
    }
    components = []
    for name, pin in sorted(pins.items()):
        if pin.marker and not Marker(pin.marker).evaluate():
            continue
        version = installed[name]["version"] if name in installed else "missing"
        if name not in installed or not SpecifierSet(f"=={pin.version}").contains(version, prereleases=True):
            raise LockError(f"{name}: {pin.version} is pinned, but the installed version is {version}")
        components.append(installed[name])
    root = document["metadata"]["component"]["bom-ref"]
    references = {component["bom-ref"] for component in components} | {root}
    dependencies = []
    for dependency in document["dependencies"]:
        if dependency["ref"] in references:
            depends_on = [reference for reference in dependency.get("dependsOn", ()) if reference in references]
            dependencies.append({"ref": dependency["ref"]} | ({"dependsOn": depends_on} if depends_on else {}))
    return document | {"components": components, "dependencies": dependencies}


def main() -> None:
    """Write one file per image."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder for the files NAME.cdx.json")
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    environment = describe_environment()
    for image in IMAGES:
        try:
            document = keep_packages(environment, read_pins(FOLDER / f"{image}.lock"))
        except LockError as error:
            sys.exit(f"sbom: {image}.lock: {error}")
        path = folder / f"{image}.cdx.json"
        path.write_text(json.dumps(document, indent=2) + "\n")
        print(f"{path}: {len(document['components'])} packages")


if __name__ == "__main__":
    main()
