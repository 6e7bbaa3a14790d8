"""Ids of the requests that earlier runs joined, so that a repeated id does not become rows again.

LOG/run-000002/_requests.npy    hashes of the newest ids, oldest first; only the newest run has this file
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from ranking.errors import LogError

FILE = "_requests.npy"
MAX_IDS = 1_000_000
"""Number of ids that are remembered. A client repeats a request within minutes."""


def hash_ids(ids: pa.ChunkedArray) -> npt.NDArray[np.uint64]:
    """Return a 64-bit hash of each id [ids]."""
    return np.fromiter(map(xxhash.xxh3_64_intdigest, ids.cast(pa.binary()).to_pylist()), np.uint64, len(ids))


def read_hashes(folder: Path) -> npt.NDArray[np.uint64]:
    """Return the hashes in the folder of a run; none if an earlier version wrote it.

    Raises:
        LogError: the file is damaged.
    """
    file = folder / FILE
    if not file.exists():
        return np.empty(0, np.uint64)
    try:
        return np.asarray(np.load(file), np.uint64)
    except (OSError, ValueError, EOFError) as error:
        raise LogError(f"{file}: is damaged ({error}); restore it, or join into a new folder") from None


def write_hashes(folder: Path, hashes: npt.NDArray[np.uint64]) -> None:
    """Write the newest hashes to the folder of a run."""
    np.save(folder / FILE, hashes[-MAX_IDS:])
