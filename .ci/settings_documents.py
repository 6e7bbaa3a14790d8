"""Write what repeats the settings of the service: the table of docs/settings.md, and the schema of the chart's values.

``python .ci/settings_documents.py`` replaces both. ``tests/deploy/test_chart.py`` and
``tests/service/test_operations_guide.py`` check them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from service.settings import Settings, format_default

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "settings.md"
TABLE = re.compile(r"^\| setting .*?(?=\n\n)", re.MULTILINE | re.DOTALL)
SCHEMA_FILE = ROOT / "deploy" / "helm" / "values.schema.json"
BLOCK = re.compile(r'^    "settings": \{\n.*?^    \}', re.MULTILINE | re.DOTALL)
SET_BY_THE_CHART = {"repository", "remote", "keys", "no_keys", "operations_port", "store", "served_log_user_key"}
"""Settings that other values of the chart determine."""

OVERRIDES: dict[str, Any] = {
    # The chart adds these up to the termination grace period, in whole seconds.
    "drain_seconds": {"type": "integer", "minimum": 0},
    "grace_seconds": {"type": "integer", "minimum": 1},
    # Settings are environment variables, whose lists are separated by commas.
    "feedback_reject": {"type": "string", "pattern": "^[a-z_]+(,[a-z_]+)*$"},
    "served_log_exclude": {"type": "string"},
    "feedback_dir": {"type": "string"},
    "served_log": {"type": "string"},
}


def setting_schemas() -> dict[str, Any]:
    """Return the JSON schema of each setting that the chart's ``settings`` can contain."""
    schema = Settings.model_json_schema()
    settings = {}
    for name, definition in sorted(schema["properties"].items()):
        if name not in SET_BY_THE_CHART:
            settings[name] = OVERRIDES.get(name) or simplify(definition, schema.get("$defs", {}))
    return settings


def simplify(definition: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Keep what limits the value of a setting. Null is not a value here: the setting is then left out."""
    if "$ref" in definition:
        definition = definitions[definition["$ref"].rsplit("/")[-1]]
    (definition,) = [option for option in definition.get("anyOf", [definition]) if option != {"type": "null"}]
    return {key: value for key, value in definition.items() if key not in ("default", "title", "format", "description")}


def settings_block() -> str:
    """Return the schema of ``settings`` as it is in the file."""
    schemas = setting_schemas()
    lines = [
        '    "settings": {',
        '      "type": "object",',
        '      "required": ["workers", "drain_seconds", "grace_seconds"],',
    ]
    # Helm lists these names if a setting is unknown. With `additionalProperties` it would name only the unknown one.
    names = ", ".join(json.dumps(name) for name in schemas)
    lines += [f'      "propertyNames": {{"enum": [{names}]}},', '      "properties": {']
    lines += [f"        {json.dumps(name)}: {json.dumps(schema)}," for name, schema in schemas.items()]
    lines[-1] = lines[-1].removesuffix(",")
    return "\n".join([*lines, "      }", "    }"])


def settings_table() -> str:
    """Return the table of the page, in the order of the settings."""
    rows = []
    for name, field in Settings.model_fields.items():
        default = format_default(name) or "–"
        cell = f"`{default}`" if default[0].isalpha() else default
        rows.append(f"| `{name}` | {cell} | {' '.join((field.description or '').split())} |")
    return "\n".join(["| setting | default | meaning |", "|---|---|---|", *rows])


def replace(file: Path, pattern: re.Pattern[str], text: str) -> None:
    """Replace the only match of a pattern in a file."""
    changed, count = pattern.subn(lambda _: text, file.read_text())
    assert count == 1, f"{file} has no such part: {pattern.pattern}"
    file.write_text(changed)


def main() -> None:
    """Replace both parts."""
    replace(SCHEMA_FILE, BLOCK, settings_block())
    replace(PAGE, TABLE, settings_table())


if __name__ == "__main__":
    main()
