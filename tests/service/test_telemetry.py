"""Nobody is told what runs here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LOADS = "from service.backends import onnx; onnx.onnxruntime.SessionOptions()"


def test_the_runtime_keeps_no_device_id(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    subprocess.run([sys.executable, "-c", LOADS], env=environment | {"HOME": str(tmp_path)}, check=True)
    assert list(tmp_path.rglob("*")) == []
