"""A log on another filesystem: a real S3 server answers, started here."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import moto.settings
import pyarrow.parquet as pq
import pytest
from moto.server import ThreadedMotoServer
from pyarrow.fs import FileSystem, LocalFileSystem, copy_files

from pipelines.cli.main import main
from pipelines.config.config import Config, load_config
from pipelines.config.uri import open_uri, parse_uri, redact_uri
from pipelines.data.profile import profile_log
from pipelines.data.reader import LogReader, load_tables
from pipelines.jobs.train import train
from ranking.errors import LogError
from tests.conftest import ROWS, SMALL

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop


class TestPlaces:
    @pytest.mark.parametrize("text", ["s3://bucket/a//b", "gs://b", "hdfs://host:8020/x", "file:///tmp/a", "S3://b/c"])
    def test_uris_stay_as_they_are(self, text: str) -> None:
        assert parse_uri(text) == text

    @pytest.mark.parametrize("text", ["log", "/data/log", "../a:b", "date=2026-01-01/x.parquet", "C:/log"])
    def test_other_text_is_a_path(self, text: str) -> None:
        assert parse_uri(text) == Path(text)

    def test_are_shown_without_password_and_options(self) -> None:
        assert redact_uri("s3://key:secret@bucket/log/?endpoint_override=h:1&scheme=http") == "s3://bucket/log"
        assert redact_uri(Path("a/b")) == "a/b"

    @pytest.mark.parametrize(
        ("uri", "says"),
        [
            ("foo://x/y", "Unrecognized filesystem type"),
            ("s3://key:secret@bucket/x?bogus=1", "Unexpected query parameter"),
            ("s3:///x", "Missing bucket name"),
        ],
    )
    def test_that_mean_nothing_are_named(self, uri: str, says: str) -> None:
        with pytest.raises(LogError, match=says) as caught:
            open_uri(uri)
        assert str(caught.value).startswith(f"{redact_uri(uri)}: cannot be reached (")
        assert "secret" not in str(caught.value)

    def test_of_files_can_be_uris(self, shop: Shop) -> None:
        shop.write(shop.table(10))
        reader = LogReader(f"file://{shop.log}", shop.schema, {})
        assert [batch.rows.num_rows for batch in reader.scan()] == [10]
        assert [batch.file for batch in reader.scan()] == [f"file://{shop.log}/part-0.parquet"]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Address of an S3 server."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = ThreadedMotoServer(port=0)
    running.start()
    host, port = running.get_host_and_port()
    yield f"{host}:{port}"
    running.stop()


class Bucket:
    """The bucket "shop" on the server."""

    def __init__(self, server: str) -> None:
        self.query = f"endpoint_override={server}&scheme=http&region=us-east-1"
        self.filesystem, _ = FileSystem.from_uri(self.uri("") + "&allow_bucket_creation=true")
        self.filesystem.create_dir("shop")
        self.filesystem.delete_dir_contents("shop")

    def uri(self, path: str, bucket: str = "shop") -> str:
        return f"s3://{bucket}/{path}?{self.query}"

    def put(self, path: str, content: bytes) -> None:
        with self.filesystem.open_output_stream(f"shop/{path}") as stream:
            stream.write(content)

    def upload(self, folder: Path) -> None:
        copy_files(str(folder), "shop", source_filesystem=LocalFileSystem(), destination_filesystem=self.filesystem)


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """An empty bucket; credentials come from the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return Bucket(server)


@pytest.fixture
def there(bucket: Bucket, logs: Path) -> Config:
    """The configuration of the generated log, with everything in the bucket."""
    bucket.upload(logs)
    places = {name: bucket.uri(file) for name, file in NAMES.items()}
    return load_config(logs / "ranker.toml", [*SMALL, *(f"logs.{name}='{uri}'" for name, uri in places.items())])


NAMES = {"path": "log", "users": "users.parquet", "items": "items.parquet"}


class TestS3:
    def test_holds_the_same_log(self, there: Config, config: Config) -> None:
        found = []
        for each in (there, config):
            schema = each.serving_schema
            reader = LogReader(each.logs.path, schema, load_tables(each.logs, schema))
            found.append(profile_log(reader, each.logs, schema))
        assert found[0].to_json() == found[1].to_json()
        assert [entry.chunk for entry in found[0].index.entries] == [entry.chunk for entry in found[1].index.entries]

    def test_is_trained_on_and_stays_a_uri_in_the_run(self, there: Config, tmp_path: Path) -> None:
        run = train(there, tmp_path / "run")
        assert run.load_config().logs == there.logs
        assert run.load_evaluation()["rows"] > 0

    def test_is_evaluated_and_scored(
        self, there: Config, bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["evaluate", str(bundle), "--logs", str(there.logs.path), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["rows"] == ROWS
        assert main(["score", str(bundle), "--logs", str(there.logs.path), "--out", str(tmp_path / "out.parquet")]) == 0
        assert pq.read_metadata(tmp_path / "out.parquet").num_rows == ROWS

    def test_may_hold_the_markers_that_spark_and_hadoop_leave(self, bucket: Bucket, shop: Shop) -> None:
        shop.write(shop.table(10), "date=2026-01-01/part-0.parquet")
        bucket.upload(shop.log)
        bucket.filesystem.create_dir("shop/date=2026-01-01/_delta")  # leaves an empty object
        for name in ("_SUCCESS", "date=2026-01-01_$folder$", "_temporary/0/part-1.parquet", ".x.crc"):
            bucket.put(name, b"")
        (batch,) = LogReader(bucket.uri(""), shop.schema, {}).scan()
        assert batch.rows.num_rows == 10
        assert batch.file == "s3://shop/date=2026-01-01/part-0.parquet"

    @pytest.mark.parametrize(("name", "path"), [("shop", "nothing"), ("no-such-bucket", "log")])
    def test_nothing_at_a_place_is_said(self, bucket: Bucket, shop: Shop, name: str, path: str) -> None:
        with pytest.raises(LogError, match="no such log; name a Parquet file or a folder of Parquet files") as caught:
            LogReader(bucket.uri(path, name), shop.schema, {})
        assert str(caught.value).startswith(f"s3://{name}/{path}: ")

    def test_side_tables_that_are_not_there_are_named(self, bucket: Bucket, shop: Shop) -> None:
        logs = shop.logs().model_copy(update={"users": bucket.uri("users.parquet")})
        with pytest.raises(LogError, match="cannot be read as Parquet") as caught:
            load_tables(logs, shop.schema)
        assert str(caught.value).startswith("s3://shop/users.parquet: ")

    def test_wrong_credentials_are_said(
        self, there: Config, shop: Shop, monkeypatch: pytest.MonkeyPatch, bucket: Bucket
    ) -> None:
        monkeypatch.setattr(moto.settings, "INITIAL_NO_AUTH_ACTION_COUNT", 0)  # from here on it knows nobody
        with pytest.raises(LogError, match=r"ACCESS_DENIED|InvalidAccessKeyId") as caught:
            LogReader(there.logs.path, shop.schema, {})
        assert str(caught.value).startswith("s3://shop/log: cannot be ")
        assert "check the address, the network and the credentials (of S3: the AWS_* variables)" in str(caught.value)

    @pytest.mark.slow  # the client tries again for six seconds
    def test_an_endpoint_that_does_not_answer_is_said(self, shop: Shop) -> None:
        with pytest.raises(LogError, match=r"cannot be reached .*onnect.*check the address") as caught:
            LogReader("s3://shop/log?endpoint_override=127.0.0.1:1&scheme=http", shop.schema, {})
        assert str(caught.value).startswith("s3://shop/log: ")
