"""Tests of the address of a study's database."""

from __future__ import annotations

import pytest

from pipelines.tuning.database_address import DatabaseAddress


def test_address_parts_are_decoded_and_the_text_has_no_password() -> None:
    address = DatabaseAddress.parse("postgresql://a%40b:p%3A%2Fss@db.example:6543/stu%20dy?sslmode=verify-full")
    assert address == DatabaseAddress("a@b", "p:/ss", "db.example", 6543, "stu dy", "verify-full")
    assert "p:/ss" not in repr(address)
    assert str(address) == "postgresql://db.example:6543/stu dy"


def test_address_without_a_password_takes_that_of_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "hidden")
    assert DatabaseAddress.parse("postgres://tuner@[::1]/study").password == "hidden"
    assert DatabaseAddress.parse("postgres://tuner:own@[::1]/study").password == "own"
    assert str(DatabaseAddress.parse("postgres://tuner@[::1]/study")) == "postgresql://[::1]:5432/study"


@pytest.mark.parametrize(
    "url",
    [
        "mysql://tuner:secret@host/study",
        "sqlite:///study.db",
        "tuner:secret@host/study",
        "postgresql://secret",
        "postgresql://tuner:secret@host",
        "postgresql://host/study",
        "postgresql://tuner:secret@host:port/study",
        "postgresql://tuner:secret@[::1/study",
        "postgresql://tuner:secret@host/study?sslmode=secret",
        "postgresql://tuner:secret@host/study?password=secret",
        "postgresql://tuner:secret@host/study?secret",
        "postgresql://tuner:secret@host/study#secret",
    ],
)
def test_invalid_address_fails_without_quoting_it(url: str) -> None:
    with pytest.raises(ValueError, match=r"write postgresql://USER:PASSWORD@HOST:PORT/DATABASE") as error:
        DatabaseAddress.parse(url)
    assert "secret" not in str(error.value)
