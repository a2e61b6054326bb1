"""How far apart a network keeps two classes in front of its softmax: a map, and numbers for it.

The paper shows t-SNE maps of frogs and ships under LeNet5 with ReLU and with SPLASH, and lets the
eye judge. A map can look tidier by chance, so the overlap is measured as well, in the logits
themselves and on the map: the mean silhouette (1 apart, 0 mixed, below 0 astray) and the purity of
nearest neighbours (the part of images whose nearest other image is of the same class; half is
chance). The paper's "100 random samples of frog and ship" are read as 100 of each.
"""

import traceback
from typing import Any

import numpy as np
import torch
from torch import Tensor

from splash_units.lab import data, plugins
from splash_units.lab.findings import Draft, Finding, claim, finding
from splash_units.lab.machine import describe_machine, now
from splash_units.lab.process import own_settings, pick_device, pick_threads, stream
from splash_units.lab.runner import load_network
from splash_units.lab.spec import SeparationSpec
from splash_units.lab.store import Store

Array = np.ndarray[Any, Any]


def separate(
    spec: SeparationSpec, store: Store, *, device: str = "auto", threads: int | None = None
) -> Finding:
    """Bring the separation of a spec into the store, unless it is there."""
    there = finding(store, spec)
    if there.result() is not None:
        return there
    images = data.load(spec.train.data)
    index = draw_images(spec, images.test_labels)
    place, threads = pick_device(device), pick_threads(threads)
    with claim(store, spec) as draft:
        if there.result() is None:
            started = {"device": str(place), "threads": threads, "started": now()}
            draft.begin({**describe_machine(), "plugins": list(plugins.loaded()), **started})
            try:
                network = load_network(store.run(spec.train)).to(place)
                with own_settings(place, threads), torch.inference_mode():
                    logits = network(images.test_images[index].to(place).float() / 255).cpu()
                _finish(draft, spec, logits, images.test_labels[index], index)
            except Exception as error:
                draft.fail(f"{type(error).__name__}: {error}", traceback.format_exc())
                raise
    return there


def draw_images(spec: SeparationSpec, labels: Tensor) -> Tensor:
    """Which test images are looked at: as many of one class as of the other."""
    chosen = []
    for wanted in spec.classes:
        of_class = (labels == wanted).nonzero().ravel()
        if len(of_class) < spec.images_per_class:
            raise ValueError(
                f"{spec.train.data} has {len(of_class)} test images of class {wanted}; "
                f"{spec.images_per_class} are asked for"
            )
        order = torch.randperm(
            len(of_class), generator=stream(spec.seed, "separation", int(wanted))
        )
        chosen.append(of_class[order[: spec.images_per_class]])
    if spec.perplexity >= 2 * spec.images_per_class:
        raise ValueError(
            f"perplexity = {spec.perplexity:g}: must be less than the number of images, "
            f"{2 * spec.images_per_class}"
        )
    return torch.cat(chosen)


def _finish(
    draft: Draft, spec: SeparationSpec, logits: Tensor, labels: Tensor, index: Tensor
) -> None:
    points, classes = logits.double().numpy(), labels.numpy()
    coordinates = embed(points, spec)
    draft.finish(
        {
            "status": "done",
            "scale": spec.train.scale,
            "images": len(labels),
            **overlap(points, classes, "logits"),
            **overlap(coordinates, classes, "map"),
            "ended": now(),
        },
        {
            "coordinates": torch.from_numpy(coordinates),
            "labels": labels,
            "logits": logits,
            "index": index,
        },
    )


def embed(points: Array, spec: SeparationSpec) -> Array:
    """The t-SNE map of points in the plane, with the paper's perplexity and learning rate."""
    from sklearn.manifold import TSNE

    embedding = TSNE(
        perplexity=spec.perplexity,
        learning_rate=spec.learning_rate,
        init="pca",
        method="exact",  # for some hundred points it is the faster one, too
        random_state=spec.seed % 2**32,
    )
    coordinates: Array = embedding.fit_transform(points).astype(np.float64)
    return coordinates


def overlap(points: Array, labels: Array, where: str) -> dict[str, float]:
    """Mean silhouette, and purity of nearest neighbours, of two classes of points."""
    from sklearn.metrics import pairwise_distances, silhouette_score

    distances = pairwise_distances(points)
    np.fill_diagonal(distances, np.inf)
    nearest = labels[distances.argmin(1)]
    return {
        f"silhouette_{where}": float(silhouette_score(points, labels)),
        f"purity_{where}": float((nearest == labels).mean()),
    }
