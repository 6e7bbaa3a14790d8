"""JSON Schema as far as our OpenAPI document goes."""

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
    "minimum": lambda value, limit: value >= limit,
    "maximum": lambda value, limit: value <= limit,
    "exclusiveMinimum": lambda value, limit: value > limit,
    "exclusiveMaximum": lambda value, limit: value < limit,
    "minLength": lambda value, limit: len(value) >= limit,
    "maxLength": lambda value, limit: len(value) <= limit,
    "minItems": lambda value, limit: len(value) >= limit,
    "minProperties": lambda value, limit: len(value) >= limit,
    "enum": lambda value, limit: value in limit,
}
TOLD = {"title", "description", "default", "example", "type", "discriminator"}
"""What needs no check of its own."""


def fits(value: Any, schema: dict[str, Any], document: dict[str, Any]) -> bool:
    """Whether a value is what a schema describes.

    Raises:
        AssertionError: the schema says something that is not understood here.
    """
    if "$ref" in schema:
        target: Any = document
        for name in schema["$ref"].removeprefix("#/").split("/"):
            target = target[name]
        return fits(value, target, document)
    kind = schema.get("type")
    types = TYPES.get(str(kind), (object,))
    if not isinstance(value, types) or (isinstance(value, bool) and int in types):
        return False
    for word, told in schema.items():
        if word == "anyOf" or word == "oneOf":
            matching = sum(fits(value, each, document) for each in told)
            if matching == 0 or (word == "oneOf" and matching > 1):
                return False
        elif word == "properties":
            if not all(fits(value[name], each, document) for name, each in told.items() if name in value):
                return False
        elif word == "additionalProperties":
            others = [value[name] for name in value if name not in schema.get("properties", {})]
            if told is False and others:
                return False
            if isinstance(told, dict) and not all(fits(other, told, document) for other in others):
                return False
        elif word == "required":
            if not set(told) <= set(value):
                return False
        elif word == "items":
            if not all(fits(each, told, document) for each in value):
                return False
        elif word in LIMITS:
            if not LIMITS[word](value, told):
                return False
        else:
            assert word in TOLD, word
    return True
