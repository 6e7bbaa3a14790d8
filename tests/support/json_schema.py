"""Validates values against the subset of JSON Schema that the OpenAPI document uses."""

from __future__ import annotations

from typing import Any

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "integer": (int,),
    "number": (int, float),
}
LIMITS = {
    "const": lambda value, constant: value == constant,
    "minimum": lambda value, limit: value >= limit,
    "maximum": lambda value, limit: value <= limit,
    "exclusiveMinimum": lambda value, limit: value > limit,
    "exclusiveMaximum": lambda value, limit: value < limit,
    "minLength": lambda value, limit: len(value) >= limit,
    "maxLength": lambda value, limit: len(value) <= limit,
    "minItems": lambda value, limit: len(value) >= limit,
    "maxItems": lambda value, limit: len(value) <= limit,
    "minProperties": lambda value, limit: len(value) >= limit,
    "enum": lambda value, limit: value in limit,
}
ANNOTATIONS = {"title", "description", "default", "example", "type", "discriminator"}
"""Keywords that need no check."""


def fits(value: Any, schema: dict[str, Any], document: dict[str, Any]) -> bool:
    """Whether a value is valid under a schema of an OpenAPI document.

    Raises:
        AssertionError: the schema has a keyword that this function does not support.
    """
    if "$ref" in schema:
        target: Any = document
        for name in schema["$ref"].removeprefix("#/").split("/"):
            target = target[name]
        return fits(value, target, document)
    types = TYPES.get(str(schema.get("type")), (object,))
    if not isinstance(value, types) or (isinstance(value, bool) and int in types):
        return False
    for keyword, argument in schema.items():
        if keyword == "anyOf" or keyword == "oneOf":
            matches = sum(fits(value, alternative, document) for alternative in argument)
            if matches == 0 or (keyword == "oneOf" and matches > 1):
                return False
        elif keyword == "properties":
            if not all(fits(value[name], member, document) for name, member in argument.items() if name in value):
                return False
        elif keyword == "additionalProperties":
            others = [value[name] for name in value if name not in schema.get("properties", {})]
            if argument is False and others:
                return False
            if isinstance(argument, dict) and not all(fits(other, argument, document) for other in others):
                return False
        elif keyword == "required":
            if not set(argument) <= set(value):
                return False
        elif keyword == "items":
            if not all(fits(item, argument, document) for item in value):
                return False
        elif keyword in LIMITS:
            if not LIMITS[keyword](value, argument):
                return False
        else:
            assert keyword in ANNOTATIONS, keyword
    return True
