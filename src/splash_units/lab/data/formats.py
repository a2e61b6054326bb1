"""Read and check canonical files: idx (plain or gzip) and CIFAR's binary records."""

from __future__ import annotations

import gzip
import hashlib
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .canonical import CanonicalFile, CanonicalSet
from .dataset import DataError, DataSet

GZIP_MAGIC = b"\x1f\x8b"
IDX_LABELS_MAGIC = 0x00000801
IDX_IMAGES_MAGIC = 0x00000803
CIFAR_SHAPE = (3, 32, 32)

Paths = dict[CanonicalFile, Path]


def find(root: Path, file: CanonicalFile) -> Path | None:
    """Where `file` lies under `root`, plain or as `.gz`; None when it does not."""
    plain = root / file.path
    return next((p for p in (plain, plain.with_name(plain.name + ".gz")) if p.is_file()), None)


def read_contents(path: Path, limit: int | None = None) -> bytes:
    """The uncompressed contents of `path`, whatever it is called.

    With `limit`, at most one byte more than that is read: enough to see that a file is too long
    without unpacking a bomb.
    """
    length = -1 if limit is None else limit + 1
    try:
        with path.open("rb") as raw:
            compressed = raw.read(2) == GZIP_MAGIC
            raw.seek(0)
            if not compressed:
                return raw.read(length)
            with gzip.GzipFile(fileobj=raw) as unpacked:
                return unpacked.read(length)
    except EOFError as error:
        raise DataError(f"{path}: truncated, its gzip stream ends too early") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: damaged gzip file ({error})") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


def verified_contents(path: Path, file: CanonicalFile) -> bytes:
    """The uncompressed contents of `path` if they are those of `file`, else a DataError."""
    contents = read_contents(path, limit=file.size)
    if len(contents) < file.size:
        raise DataError(f"{path}: truncated, holds {len(contents):,} of {file.size:,} bytes")
    if len(contents) > file.size:
        raise DataError(f"{path}: longer than the {file.size:,} bytes it should hold")
    digest = hashlib.sha256(contents).hexdigest()
    if digest != file.sha256:
        raise DataError(f"{path}: wrong contents, sha256 {digest} instead of {file.sha256}")
    return contents


def read_set(source: CanonicalSet, root: Path, *, verify: bool) -> DataSet:
    """Read a canonical data set from the files under `root`.

    `verify=False` skips sizes and digests, not the checks of the format itself.
    """
    paths = _paths(source, root)
    try:
        train_images, train_labels = _read_part(source, source.train_files, paths, verify)
        test_images, test_labels = _read_part(source, source.test_files, paths, verify)
    except DataError as error:
        raise DataError(f"{error}; delete it and run `splash data get {source.name}`") from error
    return DataSet(
        name=source.name,
        train_images=train_images,
        train_labels=train_labels,
        test_images=test_images,
        test_labels=test_labels,
        num_classes=len(source.class_names),
        class_names=source.class_names,
        mean=source.mean,
        std=source.std,
    )


def decode_idx(path: Path, contents: bytes, magic: int) -> np.ndarray:
    """Decode an idx file of unsigned bytes: magic number, one size per dimension, then the data."""
    dimensions = magic & 0xFF
    header = 4 * (1 + dimensions)
    if len(contents) < header:
        raise DataError(f"{path}: truncated, {len(contents)} bytes are less than an idx header")
    found, *shape = struct.unpack(f">{1 + dimensions}I", contents[:header])
    if found != magic:
        raise DataError(
            f"{path}: magic number {found:#010x} instead of {magic:#010x}, not this kind of idx"
        )
    expected = header + int(np.prod(shape, dtype=np.int64))
    if len(contents) != expected:
        raise DataError(
            f"{path}: holds {len(contents):,} bytes, "
            f"its header announces {expected:,} (shape {shape})"
        )
    return np.frombuffer(contents, np.uint8, offset=header).reshape(shape)


def decode_cifar(path: Path, contents: bytes, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Decode CIFAR's records into labels (N, label_bytes) and images (N, 3, 32, 32)."""
    record = label_bytes + int(np.prod(CIFAR_SHAPE))
    if not contents or len(contents) % record:
        raise DataError(
            f"{path}: truncated, {len(contents):,} bytes are not a whole number of "
            f"records of {record} bytes"
        )
    records = np.frombuffer(contents, np.uint8).reshape(-1, record)
    return records[:, :label_bytes], records[:, label_bytes:].reshape(-1, *CIFAR_SHAPE)


def _paths(source: CanonicalSet, root: Path) -> Paths:
    paths = {file: find(root, file) for file in source.files}
    for file, path in paths.items():
        if path is None:
            raise DataError(
                f"{root / file.path}: no such file; run `splash data get {source.name}`, "
                f"or set SPLASH_DATA to the folder that holds {source.folder}/"
            )
    return {file: path for file, path in paths.items() if path is not None}


def _read_part(
    source: CanonicalSet, files: tuple[CanonicalFile, ...], paths: Paths, verify: bool
) -> tuple[Tensor, Tensor]:
    if source.format == "idx":
        return _read_idx_pair(source, files, paths, verify)
    pieces = [_read_cifar_file(source, file, paths[file], verify) for file in files]
    return torch.cat([images for images, _ in pieces]), torch.cat([labels for _, labels in pieces])


def _read_idx_pair(
    source: CanonicalSet, files: tuple[CanonicalFile, ...], paths: Paths, verify: bool
) -> tuple[Tensor, Tensor]:
    images_path, labels_path = (paths[file] for file in files)
    images = decode_idx(images_path, _contents(images_path, files[0], verify), IDX_IMAGES_MAGIC)
    labels = decode_idx(labels_path, _contents(labels_path, files[1], verify), IDX_LABELS_MAGIC)
    if len(images) != len(labels):
        raise DataError(
            f"{labels_path}: {len(labels)} labels for the {len(images)} images of {images_path}"
        )
    _check_labels(labels_path, labels, len(source.class_names))
    # The copies make the bytes writable, which torch insists on.
    return torch.from_numpy(images.copy()).unsqueeze(1), torch.from_numpy(labels.astype(np.int64))


def _read_cifar_file(
    source: CanonicalSet, file: CanonicalFile, path: Path, verify: bool
) -> tuple[Tensor, Tensor]:
    labels, images = decode_cifar(path, _contents(path, file, verify), source.label_bytes)
    labels = labels[:, source.label_column]
    _check_labels(path, labels, len(source.class_names))
    pixels = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
    return torch.from_numpy(pixels).permute(0, 3, 1, 2), torch.from_numpy(labels.astype(np.int64))


def _contents(path: Path, file: CanonicalFile, verify: bool) -> bytes:
    return verified_contents(path, file) if verify else read_contents(path)


def _check_labels(path: Path, labels: np.ndarray, num_classes: int) -> None:
    if labels.size and labels.max() >= num_classes:
        raise DataError(f"{path}: label {labels.max()}, allowed are 0 to {num_classes - 1}")
