"""The ranking service: loads bundles and ranks candidates over HTTP."""

import os

# Disable the telemetry of ONNX Runtime, which reads this variable when it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
