"""The embedded digits, and data sets of arrays and image folders."""

import hashlib
import re
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch

from splash_units.lab import data
from splash_units.lab.data import DataError, sources
from splash_units.lab.data.dataset import channel_statistics

# The embedded digits


def test_digits_are_the_same_everywhere():
    digits = data.load("digits")
    assert digits.train_images.shape == (1438, 1, 32, 32)
    assert digits.test_images.shape == (359, 1, 32, 32)
    digest = hashlib.sha256()
    for tensor in (
        digits.train_images,
        digits.train_labels,
        digits.test_images,
        digits.test_labels,
    ):
        digest.update(tensor.numpy().tobytes())
    assert digest.hexdigest() == "9d93a6b6cda28ed89873b1451cc79960e73c1d07a8073bdff34407fe12218197"


def test_digits_are_enlarged_bilinearly_and_centred():
    from sklearn.datasets import load_digits

    from splash_units.lab.data.digits import enlarge

    levels = load_digits().images[:50]
    expected = torch.nn.functional.interpolate(
        torch.tensor(levels)[:, None] * 255 / 16,
        scale_factor=3,
        mode="bilinear",
        align_corners=False,
    )
    enlarged = torch.tensor(enlarge(levels.astype(np.int64)).astype(np.float64))
    assert (enlarged[:, 4:28, 4:28] - expected[:, 0]).abs().max() <= 0.5 + 1e-9
    assert enlarged.sum() == enlarged[:, 4:28, 4:28].sum()


# Data sets of one's own


def test_a_stratified_split_has_every_class_in_proportion():
    labels = torch.tensor([0] * 50 + [1] * 10 + [2] * 2)
    train, test = data.stratified_split(labels, 0.2)
    assert labels[test].bincount().tolist() == [10, 2, 1]
    assert torch.cat([train, test]).sort().values.tolist() == list(range(62))
    assert labels[test[:10]].eq(0).all()
    assert test[:10].diff().eq(5).all(), "test samples are evenly spaced"
    with pytest.raises(DataError, match=r"class 3 has one sample"):
        data.stratified_split(torch.tensor([0, 0, 3]))
    with pytest.raises(DataError, match=r"test_fraction.*1.5"):
        data.stratified_split(labels, 1.5)


@pytest.mark.parametrize("shape", [(10, 5, 6), (10, 1, 5, 6), (10, 5, 6, 3), (10, 3, 5, 6)])
def test_arrays_of_any_layout_become_a_data_set(shape):
    random = np.random.default_rng(0)
    images = random.integers(0, 256, shape, np.uint8)
    mine = data.from_arrays("mine", images, np.arange(10) % 2)
    channels = 3 if 3 in shape else 1
    assert mine.train_images.shape == (8, channels, 5, 6)
    assert mine.image_size == (5, 6)
    assert mine.num_classes == 2
    if shape[-1] == 3:
        images = images.transpose(0, 3, 1, 2)
    both = torch.cat([mine.train_images, mine.test_images]).reshape(10, -1)
    assert sorted(both.tolist()) == sorted(images.reshape(10, -1).tolist())


def test_channel_statistics_are_those_of_floats():
    images = torch.randint(0, 256, (9, 3, 5, 6), dtype=torch.uint8)
    mean, std = channel_statistics(images)
    floats = images.double() / 255
    assert mean == pytest.approx(floats.mean((0, 2, 3)).tolist(), abs=1e-12)
    assert std == pytest.approx(floats.std((0, 2, 3), correction=0).tolist(), abs=1e-12)


PIXELS = np.zeros((4, 5, 6), np.uint8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((PIXELS.astype(float), [0, 1, 0, 1]), "images must be uint8.*float64"),
        ((PIXELS[0], [0, 1]), r"got \(5, 6\)"),
        ((PIXELS[..., None].repeat(2, 3), [0, 1, 0, 1]), "1 or 3 channels"),
        ((PIXELS, [0, 1, 0]), "4 images but 3 labels"),
        ((PIXELS, [0.0, 1, 0, 1]), "whole numbers"),
        ((PIXELS, [0, -1, 0, -1]), "labels run from -1 to 0"),
        ((PIXELS, [0, 1, 0, 1], PIXELS), "both test_images and test_labels"),
        ((PIXELS, [0, 1, 0, 1], PIXELS[:, :4], [0, 1, 0, 1]), "must have one shape"),
        ((PIXELS, [0, 1, 0, 1], PIXELS, [0, 1, 0]), "4 test images but 3 labels"),
        ((PIXELS, [0, 1, 0, 1]), "std must be positive"),
    ],
)
def test_contradictory_arrays_are_refused(arguments, message):
    with pytest.raises(DataError, match=message):
        data.from_arrays("mine", *arguments)


def test_class_names_and_statistics_are_checked():
    images = np.random.default_rng(0).integers(0, 256, (4, 5, 6), np.uint8)
    labels = [0, 1, 0, 1]
    with pytest.raises(DataError, match=r"labels run from 0 to 1, allowed are 0 to 0"):
        data.from_arrays("mine", images, labels, class_names=["only"])
    with pytest.raises(DataError, match=r"mean and std need 1 values"):
        data.from_arrays("mine", images, labels, mean=(0.5, 0.5))


def paint(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (8, 6)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.new("RGB", size, colour).save(path)


def test_a_folder_of_images_becomes_a_data_set(tmp_path):
    for number in range(10):
        paint(tmp_path / "cat" / f"{number}.png", (10 * number, 0, 0))
        paint(tmp_path / "dog" / f"{number}.png", (0, 10 * number, 255), size=(32, 32))
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    mine = data.from_folder(tmp_path, name="pets", size=(6, 8))
    assert mine.name == "pets"
    assert mine.class_names == ("cat", "dog")
    assert mine.train_images.shape == (16, 3, 6, 8)
    assert mine.test_labels.bincount().tolist() == [2, 2]
    cats = mine.train_images[mine.train_labels == 0]
    assert (cats[:, 0] == cats[:, 0, :1, :1]).all()
    assert cats[:, 1:].eq(0).all()
    grey = data.from_folder(tmp_path, size=8, grayscale=True)
    assert grey.train_images.shape == (16, 1, 8, 8)


def test_train_and_test_folders_are_taken_as_they_are(tmp_path):
    for number in range(3):
        paint(tmp_path / "train" / "cat" / f"{number}.png", (200, number, 0))
        paint(tmp_path / "train" / "dog" / f"{number}.png", (0, number, 200))
    paint(tmp_path / "test" / "dog" / "0.png", (0, 0, 90))
    paint(tmp_path / "test" / "cat" / "0.png", (90, 0, 0))
    mine = data.from_folder(tmp_path)
    assert len(mine.train_labels) == 6
    assert mine.test_labels.tolist() == [0, 1]
    assert mine.test_images[:, 0, 0, 0].tolist() == [90, 0]
    paint(tmp_path / "test" / "cow" / "0.png", (1, 2, 3))
    with pytest.raises(DataError, match=r"classes \['cow'\] are not in"):
        data.from_folder(tmp_path)


def test_a_folder_that_is_not_one_of_images_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"no such folder"):
        data.from_folder(tmp_path / "nowhere")
    paint(tmp_path / "cat" / "0.png", (1, 2, 3))
    with pytest.raises(DataError, match=r"at least two classes"):
        data.from_folder(tmp_path)
    (tmp_path / "dog").mkdir()
    with pytest.raises(DataError, match=r"dog: holds no image"):
        data.from_folder(tmp_path)
    (tmp_path / "dog" / "0.png").write_bytes((tmp_path / "cat" / "0.png").read_bytes()[:40])
    with pytest.raises(DataError, match=r"dog.0\.png: not a readable image"):
        data.from_folder(tmp_path)


def test_the_code_on_the_page_on_data_runs(monkeypatch):
    monkeypatch.setattr(sources, "_registered", {})
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL):
        exec(block, names)
    assert data.load("mine").test_images.shape == (20, 3, 32, 32)
    assert names["x"].shape[1:] == (1, 32, 32)
    for name in data.names():
        assert name == "mine" or f"| `{name}` |" in page
