"""Small generated data sets in the formats of MNIST and CIFAR-10."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np


def write_idx(file: Path, values: np.ndarray) -> None:
    """Write bytes as an idx file, compressed if its name ends with .gz."""
    content = bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()
    file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)


def write_digits(folder: Path, rows: dict[str, int], suffix: str = "") -> None:
    """Write a data set of idx files; the image of a class is a bright row at the position of the class.

    Args:
        folder: new folder.
        rows: prefix of the files (train, t10k) → number of images.
        suffix: ".gz" for compressed files.
    """
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for prefix, count in rows.items():
        classes = (np.arange(count) % 10).astype(np.uint8)
        pixels = generator.integers(0, 100, (count, 28, 28)).astype(np.uint8)
        for image, digit in zip(pixels, classes, strict=True):
            image[2 * digit + 4 : 2 * digit + 6] = 255
        write_idx(folder / f"{prefix}-images-idx3-ubyte{suffix}", pixels)
        write_idx(folder / f"{prefix}-labels-idx1-ubyte{suffix}", classes)


def write_images(folder: Path) -> Path:
    """Write small data sets mnist and fashion-mnist into a new folder; returns the folder."""
    for name, suffix in (("mnist", ""), ("fashion-mnist", ".gz")):
        write_digits(folder / name, {"train": 120, "t10k": 20}, suffix)
    return folder


def write_cifar(folder: Path, rows_per_file: int) -> None:
    """Write a data set in the binary format of CIFAR-10."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for name in (*(f"data_batch_{batch}.bin" for batch in range(1, 6)), "test_batch.bin"):
        rows = generator.integers(0, 256, (rows_per_file, 3073)).astype(np.uint8)
        rows[:, 0] = np.arange(rows_per_file) % 10
        (folder / name).write_bytes(rows.tobytes())
