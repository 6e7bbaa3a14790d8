"""Best weights whose writing fails; training tests cover what they contain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pipelines.config.config import load_config
from pipelines.jobs.train import train
from pipelines.runs.run import RunFolder
from pipelines.training import best_weights
from ranking.errors import OutputError
from tests.conftest import SMALL

SETTINGS = [*SMALL, "counters=[]", "evaluation.baselines=[]", "evaluation.bootstrap=0"]


@pytest.mark.parametrize(
    ("error", "raised"),
    [(OSError(28, "No space left on device"), OutputError), (RuntimeError("Connection closed by peer"), RuntimeError)],
)
def test_failed_write_leaves_no_draft(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, raised: type[Exception]
) -> None:
    """Another rank may fail while its rows are received."""

    def fail(_tensors: Any, stream: Any) -> None:
        stream.write(torch.zeros(3).numpy().data)
        raise error

    monkeypatch.setattr(best_weights, "write_tensors", fail)
    with pytest.raises(raised):
        train(load_config(logs / "ranker.toml", SETTINGS), tmp_path / "run")
    assert list(RunFolder(tmp_path / "run").checkpoints.glob("best*")) == []
