"""Small files in the canonical formats, written independently of the code that reads them."""

import gzip
import hashlib
import io
import struct
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from splash_units.lab.data.canonical import CANONICAL, CanonicalFile, CanonicalSet

COUNTS = {"train": 7, "test": 3}


def idx_images(images: np.ndarray) -> bytes:
    return struct.pack(">IIII", 2051, *images.shape) + images.tobytes()


def idx_labels(labels: np.ndarray) -> bytes:
    return struct.pack(">II", 2049, len(labels)) + labels.astype(np.uint8).tobytes()


def cifar_records(images: np.ndarray, *labels: np.ndarray) -> bytes:
    return b"".join(
        bytes([int(column[i]) for column in labels]) + images[i].tobytes()
        for i in range(len(images))
    )


class SmallSet:
    """A data set of a few random images with the names, formats and folders of a real one."""

    def __init__(self, name: str) -> None:
        self.name = name
        random = np.random.default_rng(list(name.encode()))
        self.contents: dict[str, bytes] = {}
        self.images: dict[str, np.ndarray] = {}
        self.labels: dict[str, np.ndarray] = {}
        real = CANONICAL[name]
        for part, files in (("train", real.train_files), ("test", real.test_files)):
            if real.format == "idx":
                self._add_idx(random, part, [file.path for file in files])
            else:
                self._add_cifar(random, part, [file.path for file in files], real)
        self.source = replace(
            real,
            train_files=tuple(self._described(file) for file in real.train_files),
            test_files=tuple(self._described(file) for file in real.test_files),
            mirrors=(),
        )

    def write(self, root: Path, *, compressed: bool = False) -> None:
        for path, contents in self.contents.items():
            destination = root / (f"{path}.gz" if compressed else path)
            destination.parent.mkdir(parents=True, exist_ok=True)
            destination.write_bytes(gzip.compress(contents) if compressed else contents)

    def archive(self, **changed: bytes) -> bytes:
        """The tar.gz that holds the files, with some other member first, as the real ones have."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            for path, contents in {"readme.html": b"hello", **self.contents, **changed}.items():
                member = tarfile.TarInfo(path)
                member.size = len(contents)
                tar.addfile(member, io.BytesIO(contents))
        return packed.getvalue()

    def _add_idx(self, random: np.random.Generator, part: str, paths: list[str]) -> None:
        images = random.integers(0, 256, (COUNTS[part], 28, 28), np.uint8)
        labels = random.integers(0, 10, COUNTS[part], np.uint8)
        self.contents[paths[0]], self.contents[paths[1]] = idx_images(images), idx_labels(labels)
        self.images[part], self.labels[part] = images[:, None], labels

    def _add_cifar(
        self, random: np.random.Generator, part: str, paths: list[str], real: CanonicalSet
    ) -> None:
        count = COUNTS[part]
        images = random.integers(0, 256, (len(paths), count, 3, 32, 32), np.uint8)
        columns = [random.integers(0, 10, (len(paths), count), np.uint8)]
        if real.label_bytes == 2:
            columns.append(random.integers(0, 100, (1, count), np.uint8))
        for number, path in enumerate(paths):
            self.contents[path] = cifar_records(images[number], *(c[number] for c in columns))
        self.images[part] = images.reshape(-1, 3, 32, 32)
        self.labels[part] = columns[real.label_column].reshape(-1)

    def _described(self, file: CanonicalFile) -> CanonicalFile:
        contents = self.contents[file.path]
        return CanonicalFile(file.path, len(contents), hashlib.sha256(contents).hexdigest())
