"""Attacks on a network that is not a run of the store: a user's own, with images of theirs.

The network is a callable that a factory returns, from images in [0, 1] of shape (N, C, H, W) to
logits; whatever standardises its images belongs inside. Weights come as safetensors and images as
.npz without pickles, so that reading a file runs nothing that is in it. The factory is code, and
runs.
"""

import hashlib
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from splash_units.lab import plugins
from splash_units.lab.attacks.frozen import Model, frozen
from splash_units.lab.attacks.threat import check_images, check_labels
from splash_units.lab.attacks.victim import check_logits
from splash_units.lab.findings import Finding, hold
from splash_units.lab.process import own_settings, pick_device, pick_threads
from splash_units.lab.robustness.named import make_attack
from splash_units.lab.robustness.running import (
    LARGEST,
    conduct,
    is_complete,
    noting_failure,
    watched,
)
from splash_units.lab.robustness.targets import Target, floats
from splash_units.lab.robustness.watching import Watcher
from splash_units.lab.spec import Name, Options, Spec, digest

LAYOUTS = ("auto", "nchw", "nhwc")
IMAGE_CHANNELS = (1, 3)


class OwnSpec(Spec):
    """An attack on a network and images that are known by what is in their files."""

    kind: Literal["own"] = "own"
    factory: Name
    network_sha256: str | None
    images_sha256: str
    attack: Name
    options: Options
    images: int
    choose: Literal["right", "all"] = "right"
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Own:
    """A user's network and images, loaded and checked."""

    factory: str
    network: Model
    images: Tensor
    labels: Tensor
    classes: int
    network_sha256: str | None
    images_sha256: str


def load_own(factory: str, weights: Path | None, images: Path, layout: str = "auto") -> Own:
    """Call `module:factory`, load its weights and the images, and see whether they fit."""
    network = build(factory)
    if weights is not None:
        load_weights(network, weights)
    pixels, labels = read_images(images, layout)
    return Own(
        factory=factory,
        network=network,
        images=pixels,
        labels=labels,
        classes=_classes(network, pixels, labels),
        network_sha256=_fingerprint(network),
        images_sha256=_sha256(images),
    )


def attack_own(
    own: Own,
    output: Path,
    *,
    attack: str,
    options: Mapping[str, Any],
    images: int | None = None,
    choose: Literal["right", "all"] = "right",
    seed: int = 0,
    device: str = "auto",
    threads: int | None = None,
    again: bool = False,
    progress: bool | Watcher = False,
    check: bool = True,
    chunk_size: int | None = None,
) -> Finding:
    """Attack a user's network; the result lies in a folder of `output`, as a run's attack does."""
    make_attack(attack, options)
    place, threads = pick_device(device), pick_threads(threads)
    spec = OwnSpec(
        factory=own.factory,
        network_sha256=own.network_sha256,
        images_sha256=own.images_sha256,
        attack=attack,
        options=dict(options),
        images=images or len(own.labels),
        choose=choose,
        seed=seed,
    )
    found = Finding(output / f"{attack}-{digest(spec)[:12]}")
    with hold(found, spec) as draft:
        if again:
            draft.discard()
        elif is_complete(found, check=check):
            return found
        network = own.network.to(place) if isinstance(own.network, nn.Module) else own.network
        with watched(progress) as watcher, own_settings(place, threads), noting_failure(draft):
            conduct(
                draft,
                spec,
                Target(network, own.images, own.labels, place),
                watcher=watcher,
                record={"threads": threads},
                identity=f"{own.factory} {own.network_sha256} {own.images_sha256}",
                scale=None,
                check=check,
                chunk_size=chunk_size,
            )
    return found


def build(factory: str) -> Model:
    """What `module:factory` (or `file.py:factory`) returns: a network."""
    where, colon, name = factory.rpartition(":")
    if not colon or not where or not name:
        raise ValueError(f"{factory!r}: write a network as module:factory or file.py:factory")
    try:
        make = getattr(plugins.module_of(where), name)
        network = make()
    except Exception as error:
        raise ValueError(f"{factory}: {type(error).__name__}: {error}") from error
    if not callable(network):
        raise ValueError(f"{factory} returned a {type(network).__name__}, which can't be called")
    model: Model = network
    return model


def load_weights(network: Model, path: Path) -> None:
    """Put the tensors of a safetensors file into a module; every name must be on both sides."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not isinstance(network, nn.Module):
        raise ValueError(f"{path}: weights need a torch module, not a {type(network).__name__}")
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise ValueError(
            f"{path} is no safetensors file ({error}); "
            "safetensors.torch.save_file(model.state_dict(), path) makes one"
        ) from error
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        raise ValueError(f"{path}: {error}") from error


def read_images(path: Path, layout: str = "auto") -> tuple[Tensor, Tensor]:
    """`images` (bytes, or floats in [0, 1]) as (N, C, H, W) and `labels` from an .npz file."""
    try:
        loaded = np.load(path, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise ValueError("one array, where an .npz with images and labels is needed")
        with loaded as file:
            if missing := [name for name in ("images", "labels") if name not in file]:
                raise ValueError(f"no array {' and '.join(missing)}; there is {list(file)}")
            images, labels = file["images"], file["labels"]
    except (ValueError, zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"{path}: {error}") from error
    if images.dtype != np.uint8 and not np.issubdtype(images.dtype, np.floating):
        raise ValueError(f"{path}: images must be uint8 or floats in [0, 1], got {images.dtype}")
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"{path}: labels must be whole numbers, got {labels.dtype}")
    if images.ndim == 3:
        images = images[:, None]
    elif _channels_are_last(path, images.shape, layout):
        images = images.transpose(0, 3, 1, 2)
    pixels = torch.from_numpy(np.ascontiguousarray(images))
    truth = torch.from_numpy(labels.astype(np.int64))
    if pixels.dtype != torch.uint8:
        pixels = pixels.float()
    if len(pixels) != len(truth):
        raise ValueError(f"{path}: {len(pixels)} images but {len(truth)} labels")
    try:
        for part in torch.split(torch.arange(len(pixels)), LARGEST):
            check_images(floats(pixels[part]), truth[part])
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from error
    return pixels, truth


def _channels_are_last(path: Path, shape: tuple[int, ...], layout: str) -> bool:
    if len(shape) != 4:
        raise ValueError(
            f"{path}: images must be (N, C, H, W), (N, H, W, C) or (N, H, W), got {shape}"
        )
    if layout not in LAYOUTS:
        raise ValueError(f"layout {layout!r}: allowed are {', '.join(LAYOUTS)}")
    if layout != "auto":
        return layout == "nhwc"
    first, last = shape[1] in IMAGE_CHANNELS, shape[3] in IMAGE_CHANNELS
    if first == last:
        raise ValueError(
            f"{path}: images of shape {shape} may be (N, C, H, W) or (N, H, W, C): "
            "say which with --layout nchw or --layout nhwc"
        )
    return last


def _classes(network: Model, images: Tensor, labels: Tensor) -> int:
    """How many classes the network knows, which must be enough for the labels."""
    first = floats(images[:1])
    with frozen(network), torch.no_grad():
        try:
            answer = network(first)
        except Exception as error:
            raise ValueError(
                f"the network can't take an image of shape {tuple(first.shape)}: "
                f"{type(error).__name__}: {error}"
            ) from error
        classes = check_logits(answer, 1).shape[1]
    check_labels(labels, classes)
    return int(classes)


def _fingerprint(network: Model) -> str | None:
    """What tells two networks of one factory apart; nothing can, for a callable without a state."""
    if not isinstance(network, nn.Module):
        return None
    found = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        found.update(name.encode())
        found.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return found.hexdigest()


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
