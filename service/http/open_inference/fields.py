"""Names of the fields of an inference request, where an error names those of a rank request."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from ranking.schema import Columns
from service.engine.errors import InvalidRequestError
from service.protocol.problems import MAX_QUOTED_LENGTH, FieldError, Problem, invalid_fields

_VALUE = re.compile(r"(?:(?P<user>user)|items(?P<row>\[\d+\])?)\.(?:id|features\.(?P<feature>.+))", re.DOTALL)


def tensor_path(name: str) -> str:
    """Return the path of an input tensor in errors."""
    return f"inputs.{name:.{MAX_QUOTED_LENGTH}}"


@contextmanager
def named_as_tensors(columns: Columns) -> Iterator[None]:
    """Make errors about fields of a rank request name the tensors and parameters with these values.

    Args:
        columns: columns of the log, by which tensors are called.
    """
    try:
        yield
    except InvalidRequestError as error:
        raise InvalidRequestError(_translated(error.field, columns), error.reason) from None
    except Problem as problem:
        if not problem.errors:
            raise
        fields = [FieldError(field=_translated(e.field, columns), reason=e.reason) for e in problem.errors]
        raise invalid_fields(fields) from None


def _translated(field: str, columns: Columns) -> str:
    """Return the place of a field of a rank request in an inference request."""
    if (match := _VALUE.fullmatch(field)) is not None:
        ids = columns.user if match["user"] else columns.item
        return tensor_path(match["feature"] or ids) + (match["row"] or "")
    if field.startswith("context."):
        return tensor_path(field.removeprefix("context."))
    return {"request_id": "id", "tasks": "outputs"}.get(field, f"parameters.{field}")
