"""The ranking service: a bundle in, ranked candidates over HTTP out."""

import os

# ONNX Runtime otherwise notes, and may report to its maker, what it runs; it looks at this when it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
