"""Reading of ranker.toml: files that are not TOML are reported by what they are."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.config.toml import read_toml
from ranking.errors import ConfigError


def error_message(file: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read_toml(file)
    return str(caught.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "ranker.toml"
    assert error_message(file) == f"{file}: cannot be read (No such file or directory); name a ranker.toml"


def test_parquet_file_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "part-0.parquet"
    pq.write_table(pa.table({"user_id": [1]}), file)
    assert error_message(file) == (
        f"{file}: is a Parquet file, not a configuration file; name the ranker.toml that describes the log"
    )


def test_folder_is_rejected(tmp_path: Path) -> None:
    assert error_message(tmp_path) == (
        f"{tmp_path}: is a folder, not a configuration file; name the ranker.toml that describes the log"
    )


def test_folder_with_a_ranker_toml_suggests_the_file(tmp_path: Path) -> None:
    (tmp_path / "ranker.toml").touch()
    assert error_message(tmp_path).endswith(f"not a configuration file; name {tmp_path / 'ranker.toml'}")


def test_invalid_toml_is_reported_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "ranker.toml"
    file.write_text('name = "shop"\npath == 3\n')
    text = error_message(file)
    assert text.startswith(f"{file}: not valid TOML: ")
    assert "line 2" in text
    assert text.endswith(": path == 3; write text in quotes, numbers like 0.001 and dates like 2026-01-09")


@pytest.mark.parametrize("value", ["log", ".001", "2026-1-9"])
def test_message_shows_the_line_of_an_invalid_value(tmp_path: Path, value: str) -> None:
    file = tmp_path / "ranker.toml"
    file.write_text(f'name = "shop"\nkey = {value}\n')
    assert f": key = {value}; write text in quotes" in error_message(file)


@pytest.mark.parametrize(("text", "end"), [("a = 1\n[a]\n", ": [a]"), ("a = [1,", "(at end of document)")])
def test_message_of_other_toml_errors_shows_at_most_the_line(tmp_path: Path, text: str, end: str) -> None:
    file = tmp_path / "ranker.toml"
    file.write_text(text)
    assert error_message(file).endswith(end)


def test_file_that_is_not_utf_8_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "ranker.toml"
    file.write_bytes(b"\xff\xfe\x00name")
    assert error_message(file) == f"{file}: not valid TOML: not UTF-8 text; name a ranker.toml"
