"""Memory of a process."""

from __future__ import annotations

from pathlib import Path


def memory_bytes(pid: int, field: str) -> int:
    """Return a field of ``/proc/PID/status`` in bytes: ``VmRSS``, ``VmHWM`` (its peak) or ``RssAnon``."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition(f"{field}:")[2].split()[0]) * 1024
