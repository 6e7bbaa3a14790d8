"""The import of ``ranking.client`` without the extra that it needs."""

from __future__ import annotations

import importlib
import sys

import pytest


def test_import_without_the_http_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("ranking.client")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(ModuleNotFoundError) as caught:
        importlib.import_module("ranking.client")
    assert str(caught.value) == (
        "ranking.client needs httpx2, which the extra client installs: pip install 'dselect-ranker[client]'"
    )
