"""Log locations: local paths, URIs and a log in an S3 server that the tests start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import moto.settings
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import FileSystem, LocalFileSystem, copy_files

from pipelines.cli.main import main
from pipelines.config.config import Config, load_config
from pipelines.config.uri import open_uri, parse_uri, redact_uri
from pipelines.data.reader import LogReader, load_tables
from pipelines.datasets.synthetic import generate
from pipelines.inspection.profile import profile_log
from pipelines.jobs.freeze import freeze_run
from pipelines.jobs.train import train
from ranking.errors import LogError
from tests.conftest import SMALL, Once
from tests.support.s3 import arrow_query, set_credentials

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop

ROWS = 1_500


# URIs.


@pytest.mark.parametrize("text", ["s3://bucket/a//b", "gs://b", "hdfs://host:8020/x", "file:///tmp/a", "S3://b/c"])
def test_parse_uri_returns_uri_unchanged(text: str) -> None:
    assert parse_uri(text) == text


@pytest.mark.parametrize("text", ["log", "/data/log", "../a:b", "date=2026-01-01/x.parquet", "C:/log"])
def test_parse_uri_of_other_text_is_a_path(text: str) -> None:
    assert parse_uri(text) == Path(text)


def test_redact_uri_removes_password_and_options() -> None:
    assert redact_uri("s3://key:secret@bucket/log/?endpoint_override=h:1&scheme=http") == "s3://bucket/log"
    assert redact_uri(Path("a/b")) == "a/b"


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("foo://x/y", "Unrecognized filesystem type"),
        ("s3://key:secret@bucket/x?bogus=1", "Unexpected query parameter"),
        ("s3:///x", "Missing bucket name"),
    ],
)
def test_open_uri_of_invalid_uri_names_it_without_password(uri: str, expected: str) -> None:
    with pytest.raises(LogError, match=expected) as caught:
        open_uri(uri)
    assert str(caught.value).startswith(f"{redact_uri(uri)}: cannot be reached (")
    assert "secret" not in str(caught.value)


def test_reader_accepts_file_uri(shop: Shop) -> None:
    shop.write(shop.table(10))
    reader = LogReader(f"file://{shop.log}", shop.schema, {})
    assert [chunk.rows.num_rows for chunk in reader.scan()] == [10]
    assert [chunk.file for chunk in reader.scan()] == [f"file://{shop.log}/part-0.parquet"]


class Bucket:
    """The bucket "shop" of the server."""

    def __init__(self, server: str) -> None:
        self.query = arrow_query(server)
        self.filesystem, _ = FileSystem.from_uri(self.uri(""))
        self.filesystem.delete_dir_contents("shop")

    def uri(self, path: str, bucket: str = "shop") -> str:
        return f"s3://{bucket}/{path}?{self.query}"

    def put(self, path: str, content: bytes) -> None:
        with self.filesystem.open_output_stream(f"shop/{path}") as stream:
            stream.write(content)

    def upload(self, folder: Path) -> None:
        copy_files(str(folder), "shop", source_filesystem=LocalFileSystem(), destination_filesystem=self.filesystem)


@pytest.fixture
def bucket(s3: str, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """An empty bucket; the credentials are in the environment."""
    set_credentials(monkeypatch, s3)
    return Bucket(s3)


@pytest.fixture(scope="session")
def toml(once: Once) -> Path:
    """Configuration of a generated log that is smaller than that of other tests; read only."""
    return once("log for S3", lambda folder: generate(folder, ROWS, seed=1)) / "ranker.toml"


@pytest.fixture
def s3_config(bucket: Bucket, toml: Path) -> Config:
    """Configuration of the generated log with all of its files in the bucket."""
    bucket.upload(toml.parent)
    locations = {name: bucket.uri(file) for name, file in NAMES.items()}
    return load_config(toml, [*SMALL, *(f"logs.{name}='{uri}'" for name, uri in locations.items())])


NAMES = {"path": "log", "users": "users.parquet", "items": "items.parquet"}


# S3.


def test_profile_of_s3_log_equals_profile_of_local_log(s3_config: Config, toml: Path) -> None:
    profiles = []
    for current in (s3_config, load_config(toml)):
        schema = current.serving_schema.logged
        reader = LogReader(current.logs.path, schema, load_tables(current.logs, schema))
        profiles.append(profile_log(reader, current.logs, schema))
    assert profiles[0].to_json() == profiles[1].to_json()
    assert [entry.chunk for entry in profiles[0].index.entries] == [entry.chunk for entry in profiles[1].index.entries]


def test_s3_log_is_trained_on_evaluated_and_scored(
    bucket: Bucket, shared_shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket.upload(shared_shop.log)
    log, frozen = bucket.uri(""), str(tmp_path / "bundle")
    config = shared_shop.config(logs={"path": log})
    run = train(config, tmp_path / "run")
    assert run.load_config().logs == config.logs
    assert run.load_evaluation()["rows"] > 0
    freeze_run(run.path, tmp_path / "bundle")
    assert main(["evaluate", frozen, "--logs", log, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 200
    assert main(["score", frozen, "--logs", log, "--out", str(tmp_path / "out.parquet")]) == 0
    assert pq.read_metadata(tmp_path / "out.parquet").num_rows == 200


def test_s3_log_ignores_marker_files_of_spark_and_hadoop(bucket: Bucket, shop: Shop) -> None:
    shop.write(shop.table(10), "date=2026-01-01/part-0.parquet")
    bucket.upload(shop.log)
    bucket.filesystem.create_dir("shop/date=2026-01-01/_delta")  # creates an empty object
    for name in ("_SUCCESS", "date=2026-01-01_$folder$", "_temporary/0/part-1.parquet", ".x.crc"):
        bucket.put(name, b"")
    (chunk,) = LogReader(bucket.uri(""), shop.schema, {}).scan()
    assert chunk.rows.num_rows == 10
    assert chunk.file == "s3://shop/date=2026-01-01/part-0.parquet"


@pytest.mark.parametrize(("name", "path"), [("shop", "nothing"), ("no-such-bucket", "log")])
def test_missing_s3_log_is_named(bucket: Bucket, shop: Shop, name: str, path: str) -> None:
    with pytest.raises(LogError, match="no such log; name a Parquet file or a folder of Parquet files") as caught:
        LogReader(bucket.uri(path, name), shop.schema, {})
    assert str(caught.value).startswith(f"s3://{name}/{path}: ")


def test_missing_s3_side_table_is_named(bucket: Bucket, shop: Shop) -> None:
    logs = shop.logs().model_copy(update={"users": bucket.uri("users.parquet")})
    with pytest.raises(LogError, match=r"does not exist; correct or remove logs\.users") as caught:
        load_tables(logs, shop.schema)
    assert str(caught.value).startswith("s3://shop/users.parquet: ")


def test_wrong_s3_credentials_are_reported(bucket: Bucket, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moto.settings, "INITIAL_NO_AUTH_ACTION_COUNT", 0)  # rejects all credentials from here on
    with pytest.raises(LogError, match=r"ACCESS_DENIED|InvalidAccessKeyId") as caught:
        LogReader(bucket.uri("log"), shop.schema, {})
    assert str(caught.value).startswith("s3://shop/log: cannot be ")
    assert "check the address, the network and the credentials (for S3: the AWS_* variables)" in str(caught.value)


@pytest.mark.nightly(short="test_wrong_s3_credentials_are_reported")
def test_unreachable_s3_endpoint_is_reported(shop: Shop) -> None:
    """The message is that of the store, after the client has retried for six seconds."""
    with pytest.raises(LogError, match=r"cannot be reached .*onnect.*check the address") as caught:
        LogReader("s3://shop/log?endpoint_override=127.0.0.1:1&scheme=http", shop.schema, {})
    assert str(caught.value).startswith("s3://shop/log: ")
