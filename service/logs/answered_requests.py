"""Memory of the most recent answers: which requests were answered with which items, for all processes of a service."""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import struct
import weakref
from multiprocessing import reduction
from typing import Any, Self

import numpy as np
import orjson
import xxhash

from service.engine.values import Values, to_list
from service.settings import Settings

log = logging.getLogger("ranker.service")

WORD = 8
"""Size of a word in bytes.

The first word of a segment is the position at which its next record begins. One word per bucket of hashes follows: the
position of the bucket's newest record, 0 if there is none. The rest of the segment is the ring of records.
"""
RECORD = struct.Struct("<QQI")
"""Header of a record: hash of the request id, position of the bucket's previous record, size of the items in bytes."""
BYTES_PER_BUCKET = 512
"""Size of a segment divided by the number of its buckets."""
MEMORY_BYTES = 64 * 1024 * 1024
"""Size of the memory of a service, which its processes divide."""
MIN_SEGMENT_BYTES = 64 * 1024
"""Minimum size of a segment."""
MAX_ITEMS_SHARE = 1 / 64
"""Maximum share of a segment that the items of one answer take. Larger answers are remembered without their items."""


class AnsweredRequests:
    """A ring of records per process in shared memory; old answers are overwritten by new ones.

    A process writes only to its own segment, without a lock, and reads the segments of all processes. A position counts
    the bytes that were ever written to a segment, so that a reader notices that a record has been overwritten. The
    records of a bucket form a list, newest first. A process that replaces a terminated one continues its segment.

    The memory is anonymous: it is not part of a filesystem that could be full, and ends with its processes.

    Args:
        size: size of the memory in bytes, at least ``MIN_SEGMENT_BYTES`` per process.
        processes: number of processes that share the memory.
    """

    def __init__(self, size: int, processes: int = 1) -> None:
        self._segment_size = max(size // processes, MIN_SEGMENT_BYTES) // WORD * WORD
        self._processes = processes
        file = os.memfd_create("ranker-answers")
        os.ftruncate(file, self._segment_size * processes)
        self._open(file)

    @classmethod
    def from_settings(cls, settings: Settings) -> Self | None:
        """Create the memory, or return None if the service collects no feedback."""
        if settings.feedback_dir is None:
            return None
        return cls(MEMORY_BYTES, settings.workers)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a process that is being started; it inherits the memory."""
        return {
            "file": reduction.DupFd(self._file),
            "_segment_size": self._segment_size,
            "_processes": self._processes,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open the memory in a started process."""
        file = state.pop("file").detach()
        self.__dict__.update(state)
        self._open(file)

    def _open(self, file: int) -> None:
        self._file = file
        self._memory = mmap.mmap(file, self._segment_size * self._processes)
        self._buckets = max(1, self._segment_size // BYTES_PER_BUCKET)
        self._words = memoryview(self._memory).cast("Q")
        self._ring_start = WORD + self._buckets * WORD  # in a segment
        self._ring = self._segment_size - self._ring_start
        self._max_items = int(self._ring * MAX_ITEMS_SHARE)
        self._own: int | None = None  # start of the segment of this process
        weakref.finalize(self, os.close, file)

    def claim(self) -> None:
        """Choose the segment that this process writes to; its end releases the segment."""
        for start in self._segments():
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, start)
            except OSError:  # another process has locked it
                continue
            self._own = start
            return
        log.error("this process remembers no answered requests: all %d segments are in use", self._processes)

    def add(self, request_id: str, items: Values) -> None:
        """Remember the answer to a request. Takes 4 to 6 µs for 100 items; may be called by one thread only.

        Args:
            request_id: id of the request.
            items: ids of the items in the answer.
        """
        start = self._own
        if start is None:
            return
        text = _to_json(items)
        if len(text) > self._max_items:
            text = b""
        key = xxhash.xxh3_64_intdigest(request_id.encode("utf-8", "surrogatepass"))
        words, first, size = self._words, start // WORD, RECORD.size + len(text)
        position = words[first] or self._ring
        offset = position % self._ring
        if offset + size > self._ring:  # records do not wrap around
            position += self._ring - offset
            offset = 0
        words[first] = position + size  # first, so that readers discard what is overwritten next
        bucket, record = first + 1 + key % self._buckets, start + self._ring_start + offset
        RECORD.pack_into(self._memory, record, key, words[bucket], len(text))
        self._memory[record + RECORD.size : record + size] = text
        words[bucket] = position

    def find(self, request_id: str) -> list[frozenset[int | str] | None]:
        """Return the items of each remembered answer to requests with this id, None for items that are not remembered.

        The list is empty if no such request was answered recently.
        """
        key = xxhash.xxh3_64_intdigest(request_id.encode("utf-8", "surrogatepass"))
        texts = [text for start in self._segments() for text in self._find_in_segment(start, key)]
        return [frozenset(orjson.loads(text)) if text else None for text in texts]

    def _find_in_segment(self, start: int, key: int) -> list[bytes]:
        memory, words, first = self._memory, self._words, start // WORD
        texts: list[bytes] = []
        position = words[first + 1 + key % self._buckets]
        while position:
            record = start + self._ring_start + position % self._ring
            found, previous, length = RECORD.unpack_from(memory, record)
            text = memory[record + RECORD.size : record + RECORD.size + min(length, self._max_items)]
            if words[first] - position > self._ring:  # it has been overwritten, and so have all older ones
                break
            if found == key:
                texts.append(text)
            position = previous if previous < position else 0
        return texts

    def _segments(self) -> range:
        return range(0, self._segment_size * self._processes, self._segment_size)


def _to_json(items: Values) -> bytes:
    if isinstance(items, np.ndarray):
        return orjson.dumps(np.ascontiguousarray(items), option=orjson.OPT_SERIALIZE_NUMPY)
    return orjson.dumps(to_list(items))
