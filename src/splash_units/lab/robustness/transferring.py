"""transfer(spec): images made on each of several networks, shown to all of them.

All networks meet the same images, drawn among those that every one of them gets right, so that the
cells of the matrix can be compared. A network that falls to images made on others and resists those
made on itself hides its gradients.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from splash_units.lab.attacks import transfer as show
from splash_units.lab.findings import Draft, Finding, claim, finding
from splash_units.lab.frames import label
from splash_units.lab.machine import describe_machine, now
from splash_units.lab.process import own_settings, pick_device, pick_threads
from splash_units.lab.robustness.named import describe_attack, make_attack
from splash_units.lab.robustness.running import LARGEST, noting_failure, watched
from splash_units.lab.robustness.targets import Target, draw, target_of
from splash_units.lab.robustness.watching import Watcher
from splash_units.lab.spec import TrainSpec, TransferSpec
from splash_units.lab.store import Store


def transfer(
    spec: TransferSpec,
    store: Store,
    *,
    device: str = "auto",
    threads: int | None = None,
    again: bool = False,
    progress: bool | Watcher = False,
) -> Finding:
    """Bring a transfer matrix into the store; what an earlier try finished is not done again.

    `fooled[i][j]` of the result is how many of its `images`, made on network i, network j gets
    wrong; on the diagonal, what the attack does to the network that it looks at.
    """
    make_attack(spec.attack, spec.options)
    if len({train.data for train in spec.trains}) > 1:
        raise ValueError(
            "images can be shown only to networks of one data set, got "
            + ", ".join(sorted({train.data for train in spec.trains}))
        )
    place, threads = pick_device(device), pick_threads(threads)
    found = finding(store, spec)
    if found.result() is not None and not again:
        return found
    with claim(store, spec) as draft:
        if again:
            draft.discard()
        elif found.result() is not None:
            return found
        with watched(progress) as watcher, own_settings(place, threads), noting_failure(draft):
            targets = [target_of(store.run(train), place) for train in spec.trains]
            draft.begin({**describe_machine(), "device": str(place), "threads": threads})
            _conduct(draft, spec, targets, watcher)
    return found


def _conduct(draft: Draft, spec: TransferSpec, targets: Sequence[Target], watcher: Watcher) -> None:
    index = _drawn(draft, spec, targets)
    labels = _labels(spec.trains)
    fooled = torch.stack(
        [
            _row(draft, spec, place, targets, index, f"made on {labels[place]}", watcher)
            for place in range(len(targets))
        ]
    )
    result: dict[str, Any] = {
        "status": "done",
        "scale": spec.trains[0].scale,
        "attack": spec.attack,
        "options": spec.options,
        "labels": labels,
        "images": len(index),
        "fooled": fooled.tolist(),
        "warnings": _hidden_gradients(fooled, labels),
        "ended": now(),
    }
    draft.finish(result, {"index": index, "fooled": fooled})


def _row(
    draft: Draft,
    spec: TransferSpec,
    source: int,
    targets: Sequence[Target],
    index: Tensor,
    words: str,
    watcher: Watcher,
) -> Tensor:
    """How many images made on one network fool each, chunk by chunk."""
    made = make_attack(spec.attack, spec.options)
    watcher.begin(f"{describe_attack(spec.attack, spec.options)}, {words}", len(index))
    counts = torch.zeros(len(targets), dtype=torch.int64)
    for number, chosen in enumerate(torch.split(index, LARGEST)):
        name = f"{source}-{number}"
        part = draft.kept(name)
        if part is None:
            clean, truth = targets[source].shown(chosen)
            network = targets[source].network
            outcome = made(network, clean, truth, seed=spec.seed, progress=watcher)
            shown = [show(outcome, clean, target.network) for target in targets]
            part = {"fooled": torch.stack([after.fooled.sum().cpu() for after in shown])}
            draft.keep(name, part)
        counts += part["fooled"]
        watcher.saved(min((number + 1) * LARGEST, len(index)), int(counts[source]))
    return counts


def _drawn(draft: Draft, spec: TransferSpec, targets: Sequence[Target]) -> Tensor:
    """Images that all networks get right, in the order in which any attack draws them."""
    earlier = draft.kept("drawn")
    if earlier is not None:
        return earlier["index"]
    first, *others = (draw(target, len(target), "right", spec.seed) for target in targets)
    for other in others:
        first = first[torch.isin(first, other)]
    if not len(first):
        raise ValueError("there is no image to attack: the networks get none right in common")
    draft.keep("drawn", {"index": first[: spec.images]})
    return first[: spec.images]


def _labels(trains: Sequence[TrainSpec]) -> list[str]:
    """What tells the networks apart, in a word if that does."""
    for name in (label, lambda train: f"{label(train)} {train.model} seed {train.seed}"):
        labels = [name(train) for train in trains]
        if len(set(labels)) == len(labels):
            break
    return labels


def _hidden_gradients(fooled: Tensor, labels: Sequence[str]) -> list[str]:
    """A warning for each network that others' images harm more than its own do."""
    own = fooled.diagonal()
    worst, made_on = fooled.max(0)
    return [
        f"{labels[j]} falls to {int(worst[j])} images made on {labels[int(made_on[j])]}, to "
        f"{int(own[j])} made on itself: its gradients mislead"
        for j in range(len(labels))
        if worst[j] > own[j]
    ]
