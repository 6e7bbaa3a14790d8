from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest

from pipelines.init.source import open_source
from ranking.errors import LogError


def table(folder: Path, text: str, name: str = "log.csv") -> pa.Table:
    (folder / name).write_text(text)
    return open_source(folder / name).sample.rows


def error(folder: Path, content: bytes) -> str:
    (folder / "log.csv").write_bytes(content)
    with pytest.raises(LogError) as caught:
        open_source(folder / "log.csv")
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{folder}/")


def test_csv_types_hold_for_the_whole_file(tmp_path: Path) -> None:
    rows = table(tmp_path, "a,b,c,d,e\n1,1,true,007,x\n2,2.5,False,008,1\n")
    assert [str(field.type) for field in rows.schema] == ["int64", "double", "bool", "string", "string"]
    assert rows.to_pylist()[1] == {"a": 2, "b": 2.5, "c": False, "d": "008", "e": "1"}


def test_csv_late_text_makes_the_whole_column_text(tmp_path: Path) -> None:
    lines = ["number"] + ["1"] * 2_000_000 + ["x"]
    source_file = tmp_path / "log.csv"
    source_file.write_text("\n".join(lines))
    source = open_source(source_file)
    assert source.sample.total == 2_000_001
    assert {str(rows.schema.field("number").type) for _, rows in source.chunks()} == {"string"}


def test_csv_strips_spaces_and_reads_spellings_of_unknown_as_null(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("age, job\n39, State-gov\n?, ?\n, NA\n")
    source = open_source(tmp_path / "log.csv")
    assert source.sample.rows.to_pydict() == {"age": [39, None, None], "job": ["State-gov", None, None]}
    assert source.notes == {"age": '"?" in 1 rows read as null', "job": '"?", "NA" in 2 rows read as null'}


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_csv_delimiter_is_that_of_the_header(tmp_path: Path, delimiter: str) -> None:
    text = f'a{delimiter}b\n1{delimiter}"x{delimiter}y"\n'
    assert table(tmp_path, text).to_pylist() == [{"a": 1, "b": f"x{delimiter}y"}]


def test_csv_with_byte_order_mark_and_quoted_newlines_is_read(tmp_path: Path) -> None:
    assert table(tmp_path, '\ufeffa,b\n1,"x\ny"\n').to_pylist() == [{"a": 1, "b": "x\ny"}]


def test_csv_numbers_beyond_64_bits_stay_text(tmp_path: Path) -> None:
    assert table(tmp_path, "id\n12345678901234567890\n").to_pylist() == [{"id": "12345678901234567890"}]


def test_csv_row_with_missing_value_is_named(tmp_path: Path) -> None:
    message = error(tmp_path, b"a,b\n1,2\n3\n")
    assert message == "log.csv, row 3: has 1 values, but there are 2 columns: '3'; fix the row"


def test_csv_without_header_is_rejected(tmp_path: Path) -> None:
    message = error(tmp_path, b"39, State-gov, 77516\n50, Private, 83311\n")
    assert message.startswith("log.csv: the first line has the value 39 instead of a column name")


def test_csv_with_duplicate_names_is_rejected(tmp_path: Path) -> None:
    assert "2 columns have the name 'a'" in error(tmp_path, b"a,a\n1,2\n")


@pytest.mark.parametrize("content", [b"", b"a,b\n"])
def test_csv_without_rows_is_rejected(tmp_path: Path, content: bytes) -> None:
    assert error(tmp_path, content).startswith("log.csv: has no ")


def test_csv_in_another_encoding_is_rejected_with_the_line(tmp_path: Path) -> None:
    message = error(tmp_path, "title\nplain\nAmélie\n".encode("latin-1"))
    assert message == "log.csv, line 3: is not UTF-8 text: convert it with iconv -t UTF-8"


@pytest.mark.parametrize("runs", [1, pytest.param(6, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("row", ["1,2,3,4", "1,2,Amélie"])
def test_csv_that_cannot_be_read_ends_the_program_with_status_1(tmp_path: Path, row: str, runs: int) -> None:
    """A callback that threads of pyarrow held aborted up to half of the exiting processes; see the next test."""
    (tmp_path / "log.csv").write_bytes(b"user,item,label\n" + 200_000 * b"1,2,3\n" + f"{row}\n".encode("latin-1"))
    command = [sys.executable, "-m", "pipelines.cli", "init", "log.csv"]
    for _ in range(runs):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert done.stderr.startswith("ranker: log.csv, ")


def test_csv_reader_gives_no_callback_to_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The aborts depend on the load of the machine; their cause does not."""
    handlers = []

    def open_csv(stream: Any, read: Any, parse: pa_csv.ParseOptions, convert: Any) -> pa_csv.CSVStreamingReader:
        handlers.append(parse.invalid_row_handler)
        return original(stream, read, parse, convert)

    original = pa_csv.open_csv
    monkeypatch.setattr(pa_csv, "open_csv", open_csv)
    table(tmp_path, "a\n1\n")
    assert handlers
    assert set(handlers) == {None}


def test_csv_row_is_named_with_its_number_in_the_file(tmp_path: Path) -> None:
    content = b"a,b\n" + b'1,"2\n3"\n' * 500_000 + b'4,"5\n",6\n'
    expected = r"""log.csv, row 500002: has 3 values, but there are 2 columns: '4,"5\n",6'; fix the row"""
    assert error(tmp_path, content) == expected


@pytest.mark.parametrize("header", ["", "UserID::MovieID::Rating::Timestamp\n", "line\n"])
def test_csv_with_the_delimiter_of_movielens_names_the_command(tmp_path: Path, header: str) -> None:
    message = error(tmp_path, f"{header}1::1193::5::978300760\n".encode())
    assert message.startswith("log.csv: the delimiter '::' is not supported: convert MovieLens 1M with ranker logs mov")


def test_csv_with_several_columns_may_contain_two_colons(tmp_path: Path) -> None:
    assert table(tmp_path, "a::b,c\nd::e,f\n").to_pylist() == [{"a::b": "d::e", "c": "f"}]


def test_dat_file_is_read_as_csv(tmp_path: Path) -> None:
    assert table(tmp_path, "a\n1\n", "log.dat").to_pylist() == [{"a": 1}]


def test_csv_folder_is_rejected_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("a\n1\n")
    with pytest.raises(LogError, match=r"log\.csv: is a CSV file in a folder: name one CSV file"):
        open_source(tmp_path)


def test_missing_log_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="no such log"):
        open_source(tmp_path / "absent.csv")
