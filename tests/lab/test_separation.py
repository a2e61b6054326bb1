"""Separation: the numbers on classes whose overlap is known, and the finding on disk."""

import numpy as np
import pytest
import tiny_lab  # noqa: F401 - registers the network "tiny" and the data set "blobs"
import torch

from splash_units.lab import data
from splash_units.lab.runner import complete
from splash_units.lab.separation import draw_images, overlap, separate
from splash_units.lab.spec import SeparationSpec, TrainSpec
from splash_units.lab.store import Store

TRAIN = TrainSpec(model="tiny", data="blobs", scale="smoke", batch_size=32, epochs=2, unit="relu")
SPEC = SeparationSpec(train=TRAIN, classes=(2, 5), images_per_class=12, perplexity=5)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("store"))
    complete(TRAIN, store, threads=1)
    return store


def test_classes_apart_and_classes_mixed():
    points = np.random.default_rng(0).normal(size=(400, 2))
    labels = np.arange(400) % 2
    mixed = overlap(points, labels, "map")
    assert abs(mixed["silhouette_map"]) < 0.05
    assert 0.4 < mixed["purity_map"] < 0.6
    apart = overlap(points + 100 * labels[:, None], labels, "map")
    assert apart["silhouette_map"] > 0.95
    assert apart["purity_map"] == 1.0


def test_purity_by_hand():
    points = np.array([[0.0], [1.0], [3.0], [3.5]])
    # Nearest: 1, 0, 3, 2.
    assert overlap(points, np.array([0, 1, 1, 1]), "logits")["purity_logits"] == 0.5


def test_a_separation_is_kept_with_its_map(store, monkeypatch):
    found = separate(SPEC, store, threads=1)
    result, tensors = found.result(), found.tensors()
    assert (result["status"], result["scale"], result["images"]) == ("done", "smoke", 24)
    assert tensors["coordinates"].shape == (24, 2)
    assert tensors["labels"].tolist() == [2] * 12 + [5] * 12
    assert tensors["logits"].shape == (24, 10)
    labels = data.load("blobs").test_labels
    assert torch.equal(labels[tensors["index"]], tensors["labels"])
    assert len(set(tensors["index"].tolist())) == 24
    expected = overlap(tensors["logits"].double().numpy(), tensors["labels"].numpy(), "logits")
    assert {key: result[key] for key in expected} == expected
    assert found.record()["threads"] == 1

    def never(*_):
        raise AssertionError("computed again")

    monkeypatch.setattr("splash_units.lab.separation.embed", never)
    assert separate(SPEC, store) == found


def test_the_same_spec_gives_the_same_map(store, tmp_path):
    again = Store(tmp_path)
    complete(TRAIN, again, threads=1)
    one, two = separate(SPEC, store, threads=1), separate(SPEC, again, threads=1)
    assert torch.equal(one.tensors()["coordinates"], two.tensors()["coordinates"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"images_per_class": 17}, "has 16 test images of class 2; 17 are asked for"),
        ({"classes": (2, 11)}, "has 0 test images of class 11"),
        ({"perplexity": 24}, "perplexity = 24: must be less than the number of images, 24"),
    ],
)
def test_what_cannot_be_drawn_is_said(change, said):
    with pytest.raises(ValueError, match=said):
        draw_images(SPEC.model_copy(update=change), data.load("blobs").test_labels)


def test_a_failure_is_kept(store, monkeypatch):
    def fails(*_):
        raise RuntimeError("no map today")

    monkeypatch.setattr("splash_units.lab.separation.embed", fails)
    other = SPEC.model_copy(update={"seed": 1})
    with pytest.raises(RuntimeError):
        separate(other, store)
    from splash_units.lab.findings import finding

    assert finding(store, other).failure() == "RuntimeError: no map today"
