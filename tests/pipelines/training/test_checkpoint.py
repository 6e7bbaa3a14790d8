from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from pipelines.training.checkpoint import BEST, Checkpoints
from pipelines.training.distributed import DistContext
from ranking.errors import LogError, OutputError

SHARD = "tensors/shard-1.safetensors"
DAMAGES = ("missing", "cut", "altered")
STATE = {"epoch": 1, "names": ["a"]}


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path, tmp_path / BEST, DistContext(), keep=2)


def make_tensors(value: float) -> dict[str, torch.Tensor]:
    """Return tensors of all dtypes and shapes that a training saves."""
    return {
        "weight": torch.full((3, 2), value),
        "step": torch.tensor(value),
        "codes": torch.full((2,), int(value), dtype=torch.int64),
        "learned": torch.tensor([value > 1, False]),
        "random": torch.full((5,), int(value), dtype=torch.uint8),
    }


def test_load_returns_the_saved_tensors_and_state(checkpoints: Checkpoints) -> None:
    checkpoints.save(7, make_tensors(3.0), STATE)
    latest = checkpoints.latest()
    assert latest is not None
    assert {key: latest.state[key] for key in STATE} == STATE
    assert latest.state["step"] == 7
    loaded = make_tensors(0.0)
    latest.load(loaded)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in make_tensors(3.0).items())


def test_save_keeps_only_the_newest_checkpoints(checkpoints: Checkpoints, tmp_path: Path) -> None:
    for step in (9, 10, 100):  # ordered by number, not by name
        checkpoints.save(step, make_tensors(step), STATE)
    assert checkpoints.steps() == [10, 100]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-10", "step-100"]
    latest = checkpoints.latest()
    assert latest is not None
    assert latest.state["step"] == 100


def test_save_of_the_same_step_replaces_the_checkpoint(checkpoints: Checkpoints) -> None:
    checkpoints.save(5, make_tensors(1.0), STATE)
    checkpoints.save(5, make_tensors(2.0), STATE)
    loaded = make_tensors(0.0)
    latest = checkpoints.latest()
    assert latest is not None
    latest.load(loaded)
    assert float(loaded["step"]) == 2.0


def test_save_writes_only_safetensors_and_json(checkpoints: Checkpoints, tmp_path: Path) -> None:
    checkpoints.save(5, make_tensors(1.0), STATE)
    names = {path.suffix for path in (tmp_path / "step-5").rglob("*") if path.is_file()}
    assert names == {".safetensors", ".json"}


def test_load_ignores_the_best_weights_in_the_checkpoint(checkpoints: Checkpoints, tmp_path: Path) -> None:
    save_file({"weight": torch.full((3, 2), 9.0)}, tmp_path / BEST)
    checkpoints.save(5, make_tensors(1.0), STATE)
    latest = checkpoints.latest()
    assert latest is not None
    loaded = make_tensors(0.0)
    latest.load(loaded)
    assert float(loaded["weight"].sum()) == 6.0


def test_restore_best_returns_the_best_weights_at_the_checkpoint(checkpoints: Checkpoints, tmp_path: Path) -> None:
    (tmp_path / BEST).write_text("then")
    checkpoints.save(5, make_tensors(1.0), STATE)
    replacement = tmp_path / "draft"
    replacement.write_text("later")
    replacement.replace(tmp_path / BEST)
    latest = checkpoints.latest()
    assert latest is not None
    checkpoints.restore_best(latest)
    assert (tmp_path / BEST).read_text() == "then"


def test_restore_best_of_a_checkpoint_without_best_weights_removes_later_ones(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    checkpoints.save(5, make_tensors(1.0), STATE)
    (tmp_path / BEST).write_text("later")
    latest = checkpoints.latest()
    assert latest is not None
    checkpoints.restore_best(latest)
    assert not (tmp_path / BEST).exists()


def test_remove_deletes_checkpoints_and_drafts_but_not_the_best_weights(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    checkpoints.save(5, make_tensors(1.0), STATE)
    (tmp_path / ".step-6-draft").mkdir()
    (tmp_path / BEST).write_text("best")
    checkpoints.remove()
    assert [path.name for path in tmp_path.iterdir()] == [BEST]


@pytest.mark.parametrize(
    ("file", "damage"), [("state.json", "missing"), ("state.json", "cut"), *((SHARD, d) for d in DAMAGES)]
)
def test_latest_skips_and_logs_a_damaged_checkpoint(
    checkpoints: Checkpoints, tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, damage: str
) -> None:
    checkpoints.save(5, make_tensors(1.0), STATE)
    checkpoints.save(6, make_tensors(2.0), STATE)
    path = tmp_path / "step-6" / file
    content = path.read_bytes()
    path.unlink()
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "altered":
        path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    latest = checkpoints.latest()
    assert latest is not None
    assert latest.state["step"] == 5
    assert "step-6 is damaged and skipped" in capsys.readouterr().err


def test_latest_ignores_drafts(checkpoints: Checkpoints, tmp_path: Path) -> None:
    (tmp_path / ".step-6-draft").mkdir()
    assert checkpoints.latest() is None
    checkpoints.save(6, make_tensors(2.0), STATE)
    assert checkpoints.latest() is not None


def test_load_of_other_tensors_raises_a_log_error(checkpoints: Checkpoints) -> None:
    checkpoints.save(5, make_tensors(1.0), STATE)
    latest = checkpoints.latest()
    assert latest is not None
    with pytest.raises(LogError, match="belongs to another model or version"):
        latest.load({"other": torch.zeros(1)})
    with pytest.raises(LogError, match="belongs to another model or version"):
        latest.load({"weight": torch.zeros(4, 2)})


def test_save_on_a_full_disk_raises_an_output_error_and_keeps_the_earlier_checkpoint(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    checkpoints.save(5, make_tensors(1.0), STATE)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))  # fails writes as a full file system does
    try:
        with pytest.raises(OutputError, match=r"checkpoint of step 6 cannot be written .*--resume") as caught:
            checkpoints.save(6, {"big": torch.zeros(1_000_000)}, STATE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "the latest complete one is of step 5" in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["step-5"]
    latest = checkpoints.latest()
    assert latest is not None
    assert json.loads((latest.folder / "state.json").read_text())["step"] == 5
