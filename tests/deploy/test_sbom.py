"""Tests of the software bills of materials that ``make sbom`` writes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from requirements.lock import FOLDER, LockError, Pin, read_pins
from requirements.sbom import IMAGES, keep_packages


def document(*packages: str) -> dict[str, Any]:
    """The description of an environment in which the first package depends on all others."""
    components = [
        {"bom-ref": package, "name": name, "version": version}
        for package, (name, version) in ((package, package.split("==")) for package in packages)
    ]
    dependencies = [{"ref": "root", "dependsOn": list(packages)}, {"ref": packages[0], "dependsOn": list(packages[1:])}]
    return {
        "metadata": {"component": {"bom-ref": "root"}},
        "components": components,
        "dependencies": dependencies + [{"ref": package} for package in packages[1:]],
    }


def test_keep_packages_keeps_locked_packages_and_their_dependencies() -> None:
    pins = {"alpha": Pin("1.0"), "typing-extensions": Pin("2.0"), "old": Pin("1.0", 'python_version < "3"')}
    result = keep_packages(document("alpha==1.0+cpu", "pytest==9.0", "typing_extensions==2.0"), pins)
    assert [component["bom-ref"] for component in result["components"]] == ["alpha==1.0+cpu", "typing_extensions==2.0"]
    assert result["dependencies"] == [
        {"ref": "root", "dependsOn": ["alpha==1.0+cpu", "typing_extensions==2.0"]},
        {"ref": "alpha==1.0+cpu", "dependsOn": ["typing_extensions==2.0"]},
        {"ref": "typing_extensions==2.0"},
    ]


@pytest.mark.parametrize(("installed", "found"), [("alpha==1.1", "1.1"), ("beta==1.0", "missing")])
def test_keep_packages_environment_that_differs_from_the_lock_raises(installed: str, found: str) -> None:
    for pinned in ("1.0", "1.0+cpu"):
        with pytest.raises(
            LockError, match=rf"alpha: {re.escape(pinned)} is pinned, but the installed version is {found}"
        ):
            keep_packages(document(installed), {"alpha": Pin(pinned)})


def test_images_of_sbom_are_the_cpu_lock_files_of_the_dockerfile() -> None:
    dockerfile = (FOLDER.parent / "Dockerfile").read_text()
    for image in IMAGES:
        assert f"={image}" in dockerfile


def test_written_sbom_is_valid_and_complete(tmp_path: Path) -> None:
    if find_spec("cyclonedx") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("cyclonedx-bom is not installed; run 'make .venv/sbom'")
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = [sys.executable, "-m", "requirements.sbom", str(tmp_path)]
    subprocess.run(command, cwd=FOLDER.parent, env=environment, check=True)
    schema_folder = files("cyclonedx.schema") / "_res"
    for image in IMAGES:
        sbom = json.loads((tmp_path / f"{image}.cdx.json").read_text())
        resources = [
            (
                f"http://cyclonedx.org/schema/{name}.SNAPSHOT.schema.json",
                json.loads((schema_folder / f"{name}.SNAPSHOT.schema.json").read_text()),
            )
            for name in ("spdx", "jsf-0.82")
        ]
        schema = json.loads((schema_folder / f"bom-{sbom['specVersion']}.SNAPSHOT.schema.json").read_text())
        jsonschema_rs.validator_for(schema, registry=jsonschema_rs.Registry(resources)).validate(sbom)
        assert sbom["metadata"]["component"]["name"] == "dselect-ranker"
        purls = {component["purl"].split("@")[0].removeprefix("pkg:pypi/") for component in sbom["components"]}
        pins = {name for name, pin in read_pins(FOLDER / f"{image}.lock").items() if not pin.marker}
        assert purls >= pins
        assert purls <= read_pins(FOLDER / f"{image}.lock").keys()
