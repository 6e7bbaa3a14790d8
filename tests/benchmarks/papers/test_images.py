"""Tests of the readers of image data sets."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.papers.images import SOURCES, read_idx, read_images
from ranking.errors import LogError
from tests.benchmarks.papers.image_files import write_cifar, write_digits, write_idx


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx_files_are_read(tmp_path: Path, suffix: str) -> None:
    write_digits(tmp_path / "mnist", {"train": 30, "t10k": 12}, suffix)
    splits = read_images(tmp_path, "mnist")
    assert {split: len(images.classes) for split, images in splits.items()} == {"train": 30, "test": 12}
    pixels, classes = splits["train"]
    assert pixels.shape == (30, 1, 28, 28)
    assert (pixels.dtype, classes.dtype) == (torch.float32, torch.int64)
    assert pixels.max() == 1
    assert pixels.min() >= 0
    bright_row = pixels[:, 0, 4:24:2].mean(-1).argmax(1)
    assert torch.equal(bright_row, classes)


def test_cifar_files_are_read(tmp_path: Path) -> None:
    write_cifar(tmp_path / "cifar-10-batches-bin", 20)
    splits = read_images(tmp_path, "cifar-10-batches-bin")
    content = np.fromfile(tmp_path / "cifar-10-batches-bin" / "data_batch_2.bin", np.uint8).reshape(20, 3073)
    image = splits["train"].pixels[20 + 7]
    assert image.shape == (3, 32, 32)
    assert image[1, 2, 3] == torch.tensor(int(content[7, 1 + 1024 + 2 * 32 + 3])) / 255
    assert int(splits["train"].classes[27]) == content[7, 0] == 7
    assert len(splits["test"].classes) == 20


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is not an idx file of bytes with dimension 1"),
        (b"\0\0\x0d\1" + bytes(8), "is not an idx file of bytes with dimension 1"),
        (b"\0\0\x08\3" + bytes(12), "is not an idx file of bytes with dimension 1"),
        (b"\0\0\x08\1\0\0", "ends within its header"),
        (b"\0\0\x08\1\0\0\0\5abcd", "its header announces 5 bytes, but 4 follow"),
        (b"\0\0\x08\1\0\0\0\3abcd", "its header announces 3 bytes, but 4 follow"),
    ],
)
def test_wrong_idx_file_is_named(tmp_path: Path, content: bytes, problem: str) -> None:
    file = tmp_path / "train-labels-idx1-ubyte"
    file.write_bytes(content)
    with pytest.raises(LogError) as raised:
        read_idx(file, 1)
    assert str(raised.value) == f"{file}: {problem}; restore the original file"


def test_truncated_compressed_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "labels.gz"
    write_idx(file, np.arange(200, dtype=np.uint8))
    whole = file.read_bytes()
    for content in (whole[:-20], b"text", whole[:30] + b"\xff\xff\xff" + whole[33:]):
        file.write_bytes(content)
        with pytest.raises(LogError, match=r"labels\.gz: cannot be read \(.*\); restore the original file"):
            read_idx(file, 1)


def test_missing_data_say_where_to_get_them(tmp_path: Path) -> None:
    for name, source in SOURCES.items():
        with pytest.raises(LogError) as raised:
            read_images(tmp_path, name)
        assert str(raised.value) == f"{tmp_path / name}: there is no such folder; {source}"
    write_digits(tmp_path / "mnist", {"train": 10, "t10k": 10})
    (tmp_path / "mnist" / "t10k-images-idx3-ubyte").unlink()
    with pytest.raises(LogError, match=r"has neither t10k-images-idx3-ubyte nor t10k-images-idx3-ubyte\.gz; the npm"):
        read_images(tmp_path, "mnist")
    write_cifar(tmp_path / "cifar-10-batches-bin", 2)
    (tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin").unlink()
    with pytest.raises(LogError, match=r"data_batch_3\.bin: cannot be read"):
        read_images(tmp_path, "cifar-10-batches-bin")


def test_inconsistent_data_are_named(tmp_path: Path) -> None:
    mnist, cifar = tmp_path / "mnist", tmp_path / "cifar-10-batches-bin"
    write_digits(mnist, {"train": 10, "t10k": 10})
    labels = mnist / "train-labels-idx1-ubyte"
    write_idx(labels, np.arange(9, dtype=np.uint8))
    with pytest.raises(LogError, match=r"has 9 labels, but .*train-images-idx3-ubyte has 10 images"):
        read_images(tmp_path, "mnist")
    images = mnist / "train-images-idx3-ubyte"
    original = images.read_bytes()
    for shape in ((0, 28, 28), (10, 28, 14)):
        write_idx(images, np.zeros(shape, np.uint8))
        with pytest.raises(LogError, match=rf"idx3-ubyte: has {shape[0]} × 28 × {shape[2]} pixels instead of N × 28"):
            read_images(tmp_path, "mnist")
    images.write_bytes(original)
    write_idx(labels, np.arange(1, 11, dtype=np.uint8))
    with pytest.raises(LogError, match="row 9 has class 10, the highest is 9"):
        read_images(tmp_path, "mnist")
    write_cifar(cifar, 2)
    file = cifar / "data_batch_4.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(LogError, match=r"data_batch_4\.bin: has 6145 bytes, which is not a multiple of 3073"):
        read_images(tmp_path, "cifar-10-batches-bin")


def test_compressed_and_plain_files_are_equal(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    write_idx(tmp_path / "a", values)
    (tmp_path / "b.gz").write_bytes(gzip.compress((tmp_path / "a").read_bytes()))
    assert (read_idx(tmp_path / "a", 3) == values).all()
    assert (read_idx(tmp_path / "b.gz", 3) == values).all()
