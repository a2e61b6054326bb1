"""Training times that the paper prints: its table of run times, seconds an epoch, one GPU."""

from collections.abc import Mapping
from typing import Final

SOURCE: Final = "paper, Table of run times (seconds an epoch, NVIDIA TITAN V)"

RELU_SECONDS: Final[Mapping[str, float]] = {"mlp": 6, "lenet5": 17}
SPLASH_SECONDS: Final[Mapping[str, Mapping[int, float]]] = {
    "mlp": {3: 10, 5: 14, 7: 16, 9: 18, 11: 19},
    "lenet5": {3: 21, 5: 24, 7: 29, 9: 33, 11: 35},
}


def published_ratio(network: str, num_hinges: int) -> float | None:
    """SPLASH's time an epoch as a multiple of ReLU's; None where the paper has no number."""
    seconds = SPLASH_SECONDS.get(network, {}).get(num_hinges)
    return None if seconds is None else seconds / RELU_SECONDS[network]
