"""Who attacks: our attacks and those of other libraries, as functions from images to images.

Peers get batches of a size a user would choose for a small network. What they leave out and ours
includes, a forward that shows which images fool the network, is added to their turn.
"""

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from splash_units.lab.attacks import Attack
from splash_units.lab.attacks.victim import WIDTH

Attacker = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""Takes a network, images and labels to adversarial images, one for each."""

OURS, FOOLBOX, TORCHATTACKS, ART = "ours", "foolbox", "torchattacks", "ART"
PEERS = {FOOLBOX: "foolbox", TORCHATTACKS: "torchattacks", ART: "art"}
HOW_TO_INSTALL = (
    "pip install foolbox==3.3.4, and for torchattacks and ART, which pin old packages, "
    "pip install --no-deps --target peers -r benchmarks/attack_peers.txt, "
    "then PYTHONPATH=peers splash bench attacks"
)

POPULATION = 400
BATCH = 128


def is_installed(contender: str) -> bool:
    """Whether a contender can take part; ours always can."""
    name = contender.partition(",")[0]
    return name == OURS or importlib.util.find_spec(PEERS[name]) is not None


def missing_peers() -> tuple[str, ...]:
    """The peers that are not installed."""
    return tuple(name for name in PEERS if not is_installed(name))


def ours(attack: Attack, width: int = WIDTH) -> Attacker:
    """One of our attacks, with no more slots than there are images."""

    def run(network: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        return attack(network, images, labels, width=min(width, len(images))).images

    return run


def foolbox(name: str, eps: float | None, **settings: Any) -> Attacker:
    """A foolbox attack; without `eps`, one that minimises a distance."""

    def run(network: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        library = quietly_imported("foolbox")
        model = library.PyTorchModel(network, bounds=(0, 1), device="cpu")
        attack = getattr(library.attacks, name)(**settings)
        found = [
            attack(model, *batch, epsilons=eps)[1]
            for batch in zip(torch.split(images, BATCH), torch.split(labels, BATCH), strict=True)
        ]
        return torch.cat(found)

    return run


def torchattacks(name: str, **settings: Any) -> Attacker:
    """A torchattacks attack."""

    def run(network: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        attack = getattr(quietly_imported("torchattacks"), name)(network, **settings)
        batches = zip(torch.split(images, BATCH), torch.split(labels, BATCH), strict=True)
        return looked_at(network, torch.cat([attack(*batch) for batch in batches]))

    return run


def art_pixels(k: int, generations: int) -> Attacker:
    """ART's pixel attack by differential evolution; its population is of 400, like ours."""

    def run(network: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        evasion = quietly_imported("art.attacks.evasion")
        classification = quietly_imported("art.estimators.classification")
        classifier = classification.PyTorchClassifier(
            network, nn.CrossEntropyLoss(), images.shape[1:], 10, clip_values=(0, 1)
        )
        attack = evasion.PixelAttack(classifier, th=k, es=1, max_iter=generations, verbose=False)
        found = torch.from_numpy(attack.generate(images.numpy(), labels.numpy()))
        return looked_at(network, found.to(images.dtype))

    return run


def looked_at(network: nn.Module, images: Tensor) -> Tensor:
    """The images, after the forward it takes to learn what they do."""
    with torch.no_grad():
        for batch in torch.split(images, BATCH):
            network(batch)
    return images


def quietly_imported(module: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peers use names that scipy and others have moved
        return importlib.import_module(module)
