"""The telemetry of ONNX Runtime is disabled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

IMPORT_ONNXRUNTIME = "from service.backends import onnx; onnx.onnxruntime.SessionOptions()"


def test_onnxruntime_stores_no_device_id(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    subprocess.run([sys.executable, "-c", IMPORT_ONNXRUNTIME], env=environment | {"HOME": str(tmp_path)}, check=True)
    assert list(tmp_path.rglob("*")) == []
