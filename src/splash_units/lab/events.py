"""What a training yields while it runs: plain records, for the caller to show or to store."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from splash_units.lab.plan import Plan


@dataclass(frozen=True)
class Epoch:
    """The numbers of one epoch, counted from 1; errors are fractions.

    `split` holds the training seconds by phase (data, forward, backward, step), where asked for.
    """

    epoch: int
    train_loss: float
    train_error: float
    test_loss: float
    test_error: float
    lr: float
    seconds: float
    test_seconds: float
    split: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Checkpoint:
    """All a run needs to go on: the tensors of network and optimizer, the last epoch, the best."""

    last: Epoch
    best: Epoch
    tensors: "Mapping[str, Tensor]"


@dataclass(frozen=True)
class Started:
    """The run is about to begin, or to go on after `epochs_done`.

    `slopes` are the units' parameters by name, `constants` what else a unit's shape depends on.
    """

    plan: "Plan"
    device: str
    threads: int
    epochs_done: int
    parameters: int
    network_arguments: Mapping[str, Any]
    slopes: "Mapping[str, Tensor]"
    constants: "Mapping[str, Tensor]"


@dataclass(frozen=True)
class Progress:
    """`step` steps of an epoch are done; `slopes` only where a snapshot is due."""

    epoch: int
    step: int
    train_loss: float
    slopes: "Mapping[str, Tensor] | None"


@dataclass(frozen=True)
class EpochDone:
    """An epoch is done.

    The checkpoint's tensors are the live ones: use them before asking for the next event.
    """

    numbers: Epoch
    slopes: "Mapping[str, Tensor]"
    checkpoint: Checkpoint


@dataclass(frozen=True)
class Finished:
    """All epochs are done: the last is the result, the best by test error is told beside it.

    `inputs` are histograms of what reaches each SPLASH unit at the end.
    """

    last: Epoch
    best: Epoch
    state: "Mapping[str, Tensor]"
    inputs: "Mapping[str, Tensor]"


@dataclass(frozen=True)
class Diverged:
    """A loss ("training" or "test") was not finite, in this epoch after `step` steps.

    `layer` is the unit with the largest slope and `largest_slope` its size, so that the reader sees
    whether slopes blew up or something else did; both are None in a network without slopes, and
    `largest_slope` is None too where it is not finite.
    """

    epoch: int
    step: int
    loss: str
    layer: str | None
    largest_slope: float | None
    state: "Mapping[str, Tensor]"


Event = Started | Progress | EpochDone | Finished | Diverged
