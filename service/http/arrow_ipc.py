"""What the messages of an Arrow stream declare, summed up before anything of them is decoded.

A few bytes can declare columns without end: compressed buffers state how long they will be, and nulls need no bytes at
all. So the declarations are read first, straight from the messages' flatbuffers (format/Message.fbs of Arrow).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

HEADER = 2
"""Field of Message: its RecordBatch or DictionaryBatch."""
DATA, IS_DELTA = 1, 2
"""Fields of DictionaryBatch."""
LENGTH, BUFFERS, COMPRESSION = 0, 2, 3
"""Fields of RecordBatch."""
UNCOMPRESSED = -1
"""In place of the length of a compressed buffer: it was left as it is."""


@dataclass(frozen=True)
class Declared:
    """Of all messages of a stream together.

    Attributes:
        rows: of its record batches.
        batches: how many record batches and dictionaries.
        size: bytes of their buffers, once decompressed.
    """

    rows: int
    batches: int
    size: int


def declared(stream: pa.Buffer) -> Declared:
    """What a stream declares.

    Raises:
        pa.ArrowException, OSError, struct.error: it is no Arrow stream.
        ValueError: it holds delta dictionaries, or a batch of fewer than no rows.
    """
    rows = batches = size = 0
    for message in pa.ipc.MessageReader.open_stream(stream):
        if message.type == "record batch":
            table = _Table.root(message.metadata.to_pybytes()).table(HEADER)
            rows += table.length(LENGTH)
        elif message.type == "dictionary":
            dictionary = _Table.root(message.metadata.to_pybytes()).table(HEADER)
            if dictionary.boolean(IS_DELTA):
                raise ValueError("holds delta dictionaries: write each dictionary whole")
            table = dictionary.table(DATA)
        else:
            continue
        batches += 1
        size += _size(table, message.body)
    return Declared(rows, batches, size)


def _size(batch: _Table, body: pa.Buffer) -> int:
    """Bytes of a RecordBatch's buffers, once decompressed."""
    compressed, size = batch.field(COMPRESSION) != 0, 0
    for offset, length in batch.buffers(BUFFERS):
        (stated,) = struct.unpack_from("<q", body, offset) if compressed and length > 0 else (UNCOMPRESSED,)
        size += max(length if stated == UNCOMPRESSED else stated, 0)
    return size


class _Table:
    """A table of a flatbuffer; absent fields are 0.

    Args:
        data: the flatbuffer.
        place: where the table begins.
    """

    def __init__(self, data: bytes, place: int) -> None:
        self._data, self._place = data, place
        self._fields = place - self._read("<i", place)
        self._end = self._read("<H", self._fields)

    @classmethod
    def root(cls, data: bytes) -> _Table:
        """The outermost one."""
        return cls(data, struct.unpack_from("<I", data)[0])

    def field(self, number: int) -> int:
        """Where a field begins; 0 if it is absent."""
        entry = 4 + 2 * number
        within = self._read("<H", self._fields + entry) if entry < self._end else 0
        return self._place + within if within else 0

    def length(self, number: int) -> int:
        """A number of rows.

        Raises:
            ValueError: it is negative.
        """
        place = self.field(number)
        length = self._read("<q", place) if place else 0
        if length < 0:
            raise ValueError(f"holds a batch of {length} rows")
        return length

    def boolean(self, number: int) -> bool:
        """A flag."""
        place = self.field(number)
        return bool(self._read("<B", place)) if place else False

    def table(self, number: int) -> _Table:
        """A table within."""
        place = self.field(number)
        return _Table(self._data, place + self._read("<I", place))

    def buffers(self, number: int) -> Iterator[tuple[int, int]]:
        """A vector of Buffer: offset and length of each."""
        place = self.field(number)
        if place:
            place += self._read("<I", place)
            end = place + 4 + 16 * self._read("<I", place)
            yield from struct.iter_unpack("<qq", self._data[place + 4 : end])

    def _read(self, form: str, place: int) -> int:
        value: int = struct.unpack_from(form, self._data, place)[0]
        return value
