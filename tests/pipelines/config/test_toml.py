"""What is no ranker.toml is told from one by what it is."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.config import toml
from ranking.errors import ConfigError


def message(file: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        toml.read_toml(file)
    return str(caught.value)


def test_missing(tmp_path: Path) -> None:
    file = tmp_path / "ranker.toml"
    assert message(file) == f"{file}: cannot be read (No such file or directory); name a ranker.toml"


def test_a_log(tmp_path: Path) -> None:
    file = tmp_path / "part-0.parquet"
    pq.write_table(pa.table({"user_id": [1]}), file)
    assert message(file) == (
        f"{file}: is a Parquet file, but a configuration is wanted; name the ranker.toml that describes the log"
    )


def test_the_folder_of_a_log(tmp_path: Path) -> None:
    assert message(tmp_path) == (
        f"{tmp_path}: is a folder, but a configuration is wanted; name the ranker.toml that describes the log"
    )


def test_the_folder_of_a_ranker_toml(tmp_path: Path) -> None:
    (tmp_path / "ranker.toml").touch()
    assert message(tmp_path).endswith(f"a configuration is wanted; name {tmp_path / 'ranker.toml'}")


def test_no_toml_says_the_line(tmp_path: Path) -> None:
    file = tmp_path / "ranker.toml"
    file.write_text('name = "shop"\npath == 3\n')
    text = message(file)
    assert text.startswith(f"{file}: not valid TOML: ")
    assert "line 2" in text


def test_no_text(tmp_path: Path) -> None:
    file = tmp_path / "ranker.toml"
    file.write_bytes(b"\xff\xfe\x00name")
    assert message(file) == f"{file}: not valid TOML: it is no text in UTF-8; name a ranker.toml"
