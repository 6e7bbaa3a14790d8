"""Arrow streams as requests and responses."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from fastapi.testclient import TestClient

from service.http.media_types import ARROW, JSON


def stream(columns: Any, request: dict[str, Any] | None = None, batch_rows: int | None = None, **options: Any) -> bytes:
    """Write columns or a table as a stream, with the options of the request in its metadata."""
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    if request is not None:
        table = table.replace_schema_metadata({"request": json.dumps(request)})
    return stream_of_batches(table.schema, table.to_batches(max_chunksize=batch_rows), **options)


def stream_of_batches(schema: pa.Schema, batches: list[pa.RecordBatch], **options: Any) -> bytes:
    """Write batches as a stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def send(client: TestClient, body: bytes, accept: str = JSON, status: int = 200) -> Any:
    """Send a rank request and return its response: parsed JSON, or the table of a stream."""
    response = client.post("/v1/rank", content=body, headers={"Content-Type": ARROW, "Accept": accept})
    assert response.status_code == status, response.text
    if status == 200 and accept == ARROW:
        assert response.headers["content-type"] == ARROW
        return pa.ipc.open_stream(response.content).read_all()
    return response.json()
