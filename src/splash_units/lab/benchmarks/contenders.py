"""The units that are compared: torch's own, SPLASH, the plain equation, and learnable peers.

Peers differ in who shares a shape and in how many pieces it has. Each is made with its own way of
sharing, and with as many pieces as seven hinges give where it lets one choose.
"""

import contextlib
import importlib
import importlib.util
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from splash_units.functional import splash
from splash_units.kernels import native, reference, triton
from splash_units.lab.timing import Work
from splash_units.unit import Splash

NUM_HINGES = 7
PIECES = NUM_HINGES + 1


@dataclass(frozen=True)
class Activation:
    """A function of x, the parameters that want a gradient from it, and its fixed tensors."""

    function: Callable[[Tensor], Tensor]
    parameters: tuple[Tensor, ...] = ()
    constants: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class Inputs:
    """The tensor that goes in and the gradient that comes back, laid out alike."""

    x: Tensor
    upstream: Tensor

    @property
    def channels(self) -> int:
        return self.x.shape[1]


Make = Callable[[Inputs], Activation]


def draw_inputs(
    shape: tuple[int, ...],
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    channels_last: bool = False,
    requires_grad: bool = True,
) -> Inputs:
    """Standard normal values, as batch norm gives them; the same for every contender."""
    generator = torch.Generator().manual_seed(0)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    x, upstream = (
        torch.randn(shape, generator=generator).to(device, dtype, memory_format=layout)
        for _ in range(2)
    )
    return Inputs(x.requires_grad_(requires_grad), upstream)


def forward(make: Make, inputs: Inputs) -> Work:
    """One forward pass; whether torch records it is the caller's to say.

    It keeps its inputs, for those who share them.
    """
    activation, x = make(inputs), inputs.x

    def work(_kept: Inputs = inputs) -> Tensor:
        return activation.function(x)

    return work


def forward_backward(make: Make, inputs: Inputs) -> Work:
    """One forward pass and the gradients of x and all parameters, fresh each time."""
    activation, x, upstream = make(inputs), inputs.x, inputs.upstream
    wanted = (x, *activation.parameters)

    def work(_kept: Inputs = inputs) -> tuple[Tensor, ...]:
        return torch.autograd.grad(activation.function(x), wanted, upstream)

    return work


def function(of: Callable[[Tensor], Tensor]) -> Make:
    """A function without parameters."""
    return lambda inputs: Activation(of)


def module(build: Callable[[Inputs], nn.Module]) -> Make:
    """A module, called as a network calls it."""

    def make(inputs: Inputs) -> Activation:
        built = build(inputs).to(inputs.x.device)
        return Activation(built, tuple(built.parameters()), tuple(built.buffers()))

    return make


def splash_function(num_hinges: int = NUM_HINGES) -> Make:
    """`splash()` with slopes shared by the layer."""
    return lambda inputs: _of_slopes(splash, num_hinges, inputs)


def equation(inputs: Inputs) -> Activation:
    """The plain equation, operation by operation."""
    return _of_slopes(reference.splash, NUM_HINGES, inputs)


def compiled_equation(inputs: Inputs) -> Activation:
    """The plain equation under `torch.compile`, for this very shape."""
    return _of_slopes(torch.compile(reference.splash, dynamic=False), NUM_HINGES, inputs)


def _of_slopes(of: Callable[..., Tensor], num_hinges: int, inputs: Inputs) -> Activation:
    # Random slopes: the zeros of the ReLU start are nothing to profit from.
    unit = Splash(num_hinges, init="random").to(inputs.x.device)
    a_pos, a_neg, hinges = unit.a_pos, unit.a_neg, unit.hinges
    return Activation(lambda x: of(x, a_pos, a_neg, hinges), (a_pos, a_neg), (hinges,))


def _splash_by_channel(inputs: Inputs) -> nn.Module:
    return Splash(NUM_HINGES, init="random", share="channel", features=inputs.channels)


RELU = "F.relu"
SPLASH = "splash()"
UNITS: Mapping[str, Make] = {
    RELU: function(F.relu),
    SPLASH: splash_function(),
    "nn.ReLU": module(lambda inputs: nn.ReLU()),
    "Splash": module(lambda inputs: Splash(NUM_HINGES, init="random")),
    "Splash, by channel": module(_splash_by_channel),
    "F.silu": function(F.silu),
    "F.gelu": function(F.gelu),
    "torch.tanh": function(torch.tanh),
    "nn.PReLU": module(lambda inputs: nn.PReLU(dtype=inputs.x.dtype)),
}
EQUATIONS: Mapping[str, Make] = {
    "equation, eager": equation,
    "equation, compiled": compiled_equation,
}


@dataclass(frozen=True)
class _Peer:
    """Where a peer's class is, and its arguments for given inputs."""

    module: str
    name: str
    arguments: Callable[[Inputs], dict[str, Any]]

    @property
    def is_installed(self) -> bool:
        return importlib.util.find_spec(self.module.partition(".")[0]) is not None

    def build(self, inputs: Inputs) -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what peers warn of on import is no measurement
            made: nn.Module = getattr(importlib.import_module(self.module), self.name)(
                **self.arguments(inputs)
            )
        return made


_PEERS: Mapping[str, _Peer] = {
    "deepsplines DeepBSpline": _Peer(
        "deepsplines.ds_modules",
        "DeepBSpline",
        lambda inputs: {
            "mode": "conv" if inputs.x.dim() == 4 else "fc",
            "num_activations": inputs.channels,
            "size": PIECES + 1,
            "range_": 4,
            "init": "relu",
        },
    ),
    "torchpwl PWL": _Peer(
        "torchpwl",
        "PWL",
        lambda inputs: {"num_channels": inputs.channels, "num_breakpoints": NUM_HINGES},
    ),
    "deepxube SPLASH": _Peer(
        "deepxube.nnet.pytorch_models", "SPLASH", lambda inputs: {"num_hinges": NUM_HINGES}
    ),
    "rational_activations": _Peer(
        "rational.torch",
        "Rational",
        lambda inputs: {"approx_func": "relu", "cuda": inputs.x.is_cuda},
    ),
    "torch_activation SPLASH": _Peer(
        "torch_activation.classical.learnable",
        "SPLASH",
        lambda inputs: {"n_hinges": PIECES // 2},
    ),
}


def installed_peers() -> dict[str, Make]:
    """The peers that are installed here, by name."""
    return {name: module(peer.build) for name, peer in _PEERS.items() if peer.is_installed}


def missing_peers() -> tuple[str, ...]:
    """The peers that are not."""
    return tuple(name for name, peer in _PEERS.items() if not peer.is_installed)


def kernel_in_use(device: str = "cpu") -> str:
    """Which kernel serves on a device, or why the plain equation does."""
    kind = torch.device(device).type
    if kind == "cuda":
        reason = triton.why_not()
        return "triton" if reason is None else f"reference: {reason}"
    if kind != "cpu":
        return f"reference: there is no kernel for {kind}"
    outcome = native.attempt()
    if isinstance(outcome, native.Operators):
        return f"native, {outcome.instruction_set()}"
    return f"reference: {outcome}"


@contextlib.contextmanager
def saved_for_backward() -> Iterator[list[Tensor]]:
    """The tensors that torch keeps for the backward of what runs inside."""
    saved: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield saved


def saved_bytes(make: Make, inputs: Inputs) -> int:
    """Bytes kept for backward beside x and what the unit itself has, all memory counted once."""
    activation = make(inputs)
    own = {
        tensor.untyped_storage().data_ptr()
        for tensor in (inputs.x, *activation.parameters, *activation.constants)
    }
    activation.function(inputs.x)  # what is compiled is compiled before anyone looks
    with saved_for_backward() as saved:
        y = activation.function(inputs.x)
    storages = {s.data_ptr(): s.nbytes() for s in (t.untyped_storage() for t in saved)}
    del y
    return sum(size for address, size in storages.items() if address not in own)
