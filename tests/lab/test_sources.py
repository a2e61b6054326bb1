"""Reading and checking canonical files, and data sets by name."""

import gzip
import os
from collections.abc import Callable

import numpy as np
import pytest
import torch
from canonical_files import SmallSet, cifar_records, idx_images, idx_labels

from splash_units.lab import data
from splash_units.lab.data import DataError, sources
from splash_units.lab.data.canonical import CANONICAL
from splash_units.lab.data.dataset import channel_statistics

NAMES = tuple(CANONICAL)
IDX = "mnist/train-images-idx3-ubyte"
IDX_LABELS = "mnist/train-labels-idx1-ubyte"
CIFAR = "cifar-10-batches-bin/data_batch_2.bin"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], SmallSet]:
    """Put a small set in the place of a real one, with digests of its own."""

    def install(name: str) -> SmallSet:
        made = SmallSet(name)
        monkeypatch.setitem(CANONICAL, name, made.source)
        return made

    return install


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_registered", {})


# Reading


@pytest.mark.parametrize("name", NAMES)
def test_canonical_files_are_read_as_they_were_written(name, small, tmp_path):
    made = small(name)
    made.write(tmp_path)
    loaded = data.load(name, root=tmp_path)
    for part in ("train", "test"):
        images, labels = getattr(loaded, f"{part}_images"), getattr(loaded, f"{part}_labels")
        assert images.dtype == torch.uint8
        assert np.array_equal(images.numpy(), made.images[part])
        assert np.array_equal(labels.numpy(), made.labels[part])
        assert images.permute(0, 2, 3, 1).is_contiguous()
    assert loaded.num_classes == len(loaded.class_names) == len(set(loaded.class_names))


@pytest.mark.parametrize("level", [1, 9])
def test_a_gzip_file_passes_however_it_was_compressed(level, small, tmp_path):
    made = small("mnist")
    made.write(tmp_path)
    (tmp_path / IDX).unlink()
    (tmp_path / f"{IDX}.gz").write_bytes(gzip.compress(made.contents[IDX], level))
    assert np.array_equal(data.load("mnist", root=tmp_path).train_images, made.images["train"])


def test_the_known_digests_are_used_and_can_be_skipped(small, tmp_path):
    made = small("cifar-10")
    made.write(tmp_path)
    flipped = bytearray(made.contents[CIFAR])
    flipped[1000] ^= 1
    (tmp_path / CIFAR).write_bytes(flipped)
    with pytest.raises(
        DataError, match=r"data_batch_2\.bin: wrong contents.*splash data get cifar"
    ):
        data.load("cifar-10", root=tmp_path)
    data.load("cifar-10", root=tmp_path, verify=False)


def truncated(contents: bytes) -> bytes:
    return contents[:-1]


@pytest.mark.parametrize(
    ("name", "path", "damage", "message"),
    [
        ("mnist", IDX, truncated, "truncated"),
        ("mnist", IDX, lambda contents: contents + b"x", "longer than"),
        ("mnist", IDX, lambda contents: gzip.compress(contents)[:-9], "truncated"),
        ("mnist", IDX, lambda contents: b"\x1f\x8b" + contents[2:], "damaged gzip"),
        ("mnist", IDX, lambda contents: gzip.compress(contents[:-1] + b"x"), "wrong contents"),
        ("mnist", IDX, lambda contents: b"", "truncated, holds 0 of"),
        ("cifar-10", CIFAR, truncated, "truncated"),
    ],
)
def test_a_damaged_file_is_named_with_the_remedy(name, path, damage, message, small, tmp_path):
    made = small(name)
    made.write(tmp_path)
    (tmp_path / path).write_bytes(damage(made.contents[path]))
    with pytest.raises(DataError, match=message) as caught:
        data.load(name, root=tmp_path)
    assert str(tmp_path / path) in str(caught.value)
    assert f"splash data get {name}" in str(caught.value)


SQUARES = np.zeros((7, 28, 28), np.uint8)


@pytest.mark.parametrize(
    ("name", "path", "contents", "message"),
    [
        ("mnist", IDX, idx_labels(SQUARES), "magic number 0x00000801 instead of 0x00000803"),
        ("mnist", IDX, b"\0\0\x08", "less than an idx header"),
        ("mnist", IDX, truncated(idx_images(SQUARES)), "header announces"),
        ("mnist", IDX_LABELS, idx_labels(np.arange(6)), "6 labels for the 7 images"),
        ("mnist", IDX_LABELS, idx_labels(np.full(7, 10)), "label 10, allowed are 0 to 9"),
        (
            "cifar-10",
            CIFAR,
            cifar_records(np.zeros((1, 3072), np.uint8), [10]),
            "label 10, allowed",
        ),
        ("cifar-10", CIFAR, bytes(3072), "not a whole number of records of 3073"),
        ("cifar-10", CIFAR, b"", "not a whole number"),
        ("cifar-100", "cifar-100-binary/train.bin", bytes(3073), "records of 3074"),
    ],
)
def test_the_format_is_checked_even_without_digests(name, path, contents, message, small, tmp_path):
    small(name).write(tmp_path)
    (tmp_path / path).write_bytes(contents)
    with pytest.raises(DataError, match=message) as caught:
        data.load(name, root=tmp_path, verify=False)
    assert str(tmp_path / path) in str(caught.value)


def test_a_missing_file_is_named_with_both_remedies(small, tmp_path):
    small("mnist").write(tmp_path)
    (tmp_path / IDX).unlink()
    with pytest.raises(
        DataError, match=r"no such file; run `splash data get mnist`.*SPLASH_DATA"
    ) as e:
        data.load("mnist", root=tmp_path)
    assert str(tmp_path / IDX) in str(e.value)


def test_the_root_is_the_argument_then_the_variable_then_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPLASH_DATA", str(tmp_path / "variable"))
    assert data.data_root(tmp_path / "argument") == tmp_path / "argument"
    assert data.data_root() == tmp_path / "variable"
    monkeypatch.delenv("SPLASH_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "splash-units" in data.data_root().parts


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(DataError, match=r"'cifar10'.*cifar-10"):
        data.load("cifar10")
    with pytest.raises(TypeError, match=r"mnist: takes no options, got size"):
        data.load("mnist", size=3)


def test_available_tells_what_is_there(small, tmp_path):
    small("mnist").write(tmp_path, compressed=True)
    small("cifar-10").write(tmp_path)
    (tmp_path / CIFAR).unlink()
    data.register("mine", data.load("digits"))
    found = {record.name: record for record in data.available(tmp_path)}
    assert list(found) == list(data.names())
    assert found["digits"].present
    assert found["mine"].present
    assert found["mnist"].present
    assert found["mnist"].path == tmp_path / "mnist"
    assert found["mnist"].bytes == sum(p.stat().st_size for p in (tmp_path / "mnist").iterdir())
    assert not found["cifar-10"].present
    assert found["cifar-10"].note.startswith("1 of 6 files missing")
    assert not found["cifar-100"].present
    assert found["cifar-100"].bytes == 0


def test_a_registered_set_loads_by_name_with_its_options():
    digits = data.load("digits")
    data.register("mine", digits)
    assert data.load("mine") is digits
    data.register("made", lambda flavour: {"sweet": digits}[flavour])
    assert data.load("made", flavour="sweet") is digits
    assert data.names()[-2:] == ("mine", "made")
    with pytest.raises(ValueError, match=r"'mine' is taken"):
        data.register("mine", digits)
    data.register("mine", lambda: digits, replace=True)
    with pytest.raises(ValueError, match=r"'mnist' is taken"):
        data.register("mnist", digits, replace=True)
    with pytest.raises(ValueError, match=r"'a/b'"):
        data.register("a/b", digits)
    with pytest.raises(TypeError, match=r"got int"):
        data.register("number", 3)


# The real files

CLASS_COUNTS = {
    "mnist": [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    "fashion-mnist": [6000] * 10,
    "cifar-10": [5000] * 10,
    "cifar-100": [500] * 100,
    "cifar-100-coarse": [2500] * 20,
}


@pytest.mark.parametrize("name", NAMES)
def test_the_real_files_are_the_known_ones(name):
    if "SPLASH_DATA" not in os.environ:
        pytest.skip("SPLASH_DATA does not name a folder with the real files")
    if not {record.name: record.present for record in data.available()}[name]:
        pytest.skip(f"SPLASH_DATA holds no {name}")
    loaded = data.load(name)
    assert loaded.train_labels.bincount().tolist() == CLASS_COUNTS[name]
    assert len(loaded.test_labels) == 10_000
    mean, std = channel_statistics(loaded.train_images)
    assert loaded.mean == pytest.approx(mean, abs=5e-4)
    assert loaded.std == pytest.approx(std, abs=5e-4)
