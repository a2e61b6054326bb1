"""Networks to convert, and what the tests ask of a converted one."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from splash_units import Splash

relu_of_this_file = F.relu


def units_of(model: nn.Module) -> dict[str, Splash]:
    return {path: m for path, m in model.named_modules() if isinstance(m, Splash)}


def bend(model: nn.Module) -> nn.Module:
    """Give every unit a shape of its own, so that outputs tell who is used where."""
    with torch.no_grad():
        for number, unit in enumerate(units_of(model).values(), start=1):
            unit.a_neg[0].fill_(0.1 * number)
    return model


class Calls(nn.Module):
    """Every spelling of a ReLU as a function."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(9))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.layers[0](x))
        x = torch.relu(self.layers[1](x))
        x = self.layers[2](x).relu()
        x = self.layers[3](x).relu_()
        x = torch.relu_(self.layers[4](x))
        x = F.relu(self.layers[5](x), inplace=True)
        x = self.layers[6](x).relu().clamp(min=0)
        for layer in self.layers[7:8]:
            x = F.relu(layer(x))
        return relu_of_this_file(input=self.layers[8](x))


class Block(nn.Module):
    """torchvision's habit: one in-place ReLU module, used twice."""

    def __init__(self, features: int = 6) -> None:
        super().__init__()
        self.first = nn.Linear(features, features)
        self.second = nn.Linear(features, features)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.first(x))
        y = self.second(y)
        y += x
        return self.relu(y)


class Optional(nn.Module):
    """Ways through `forward` that the caller chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor, mask: Tensor | None = None, *, twice: bool = False) -> Tensor:
        x = F.relu(self.layer(x))
        x = F.dropout(x, 0.5, training=self.training)
        if mask is not None:
            x = x * mask
        if twice:
            x = F.relu(self.layer(x))
        return x


def same_outputs(a: nn.Module, b: nn.Module, *args: object, **kwargs: object) -> bool:
    with torch.no_grad():
        return torch.equal(a(*args, **kwargs), b(*args, **kwargs))


class HelperMethod(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.layer(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x)


class OwnActivation(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(x, 0.3)


class Counts(nn.Module):
    """Has a buffer that it changes, and an assertion."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[1] == 6, f"six features, not {x.shape[1]}"
        if self.training:
            self.calls.add_(1)
        return F.relu(x) + self.calls
