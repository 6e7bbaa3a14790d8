"""What executes the frozen graph: one small interface, a file a backend."""

from __future__ import annotations

from service.engine.runtimes.base import Precision, Runtime
from service.engine.runtimes.choosing import BACKENDS, Backend, choose

__all__ = ["BACKENDS", "Backend", "Precision", "Runtime", "choose"]
