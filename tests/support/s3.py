"""An S3 server for tests, with the bucket "shop"."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyarrow.fs import FileSystem

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_EC2_METADATA_DISABLED": "true"}


@contextmanager
def s3_server() -> Iterator[str]:
    """Run a server and yield its address, such as "127.0.0.1:5000"."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(port=0)
    server.start()
    _, port = server.get_host_and_port()
    address = f"127.0.0.1:{port}"
    try:
        with pytest.MonkeyPatch.context() as patch:
            set_credentials(patch, address)
            filesystem, _ = FileSystem.from_uri(f"s3://shop?allow_bucket_creation=true&{arrow_query(address)}")
            filesystem.create_dir("shop")
        yield address
    finally:
        server.stop()


def arrow_query(address: str) -> str:
    """Return the options of a URI by which pyarrow finds the server."""
    return f"endpoint_override={address}&scheme=http&region=us-east-1"


def set_credentials(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """Set the environment variables by which clients find the server and authenticate."""
    for name, value in {**CREDENTIALS, "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": f"http://{address}"}.items():
        monkeypatch.setenv(name, value)
