"""Compile every kernel as it would be launched, for GPUs that are not here, and name each.

Run as a program, in a process where Triton is not in its interpreter: launches are noted instead of
made, and each is given to Triton's compiler, down to machine code.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from splash_units.kernels.triton import batch_norm, device, launching, load

TARGETS = (GPUTarget("cuda", 80, 32), GPUTarget("hip", "gfx942", 64))
POINTERS = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
}


@dataclass(frozen=True)
class Noted:
    """Stands in for a kernel, and notes its launches."""

    kernel: Any
    launches: list[tuple[Any, dict[str, Any]]]

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: Any, **named: Any) -> None:
            positional = dict(zip(self.kernel.arg_names, arguments, strict=False))
            self.launches.append((self.kernel, positional | named))

        return launch


def noted_launches() -> list[tuple[Any, dict[str, Any]]]:
    launches: list[tuple[Any, dict[str, Any]]] = []
    for module, names in (
        (device, ("splash_forward", "splash_backward")),
        (batch_norm, ("moments", "join_moments")),
        (batch_norm, ("normalised_forward", "normalised_sums", "normalised_backward")),
    ):
        for name in names:
            setattr(module, name, Noted(getattr(module, name), launches))
    launching.INTERPRETED = True  # type: ignore[misc]  # lets CPU tensors through
    use(torch.ones(8, 16, 32, 32), own=(), affine=True, training=True)
    channels_last = torch.ones(8, 20, 7, 7).to(torch.bfloat16, memory_format=torch.channels_last)
    use(channels_last, own=(20,), affine=True, training=False)
    use(torch.ones(8, 1, dtype=torch.float64), own=(), affine=False, training=True)
    return launches


def use(x: Tensor, own: tuple[int, ...], affine: bool, training: bool) -> None:
    """Forward and backward of the unit alone and behind batch norm."""
    operators = load()
    assert operators is not None
    x.requires_grad_()
    hinges, channels = torch.arange(4.0), x.shape[1]
    a_pos, a_neg = (torch.ones(4, *own, requires_grad=True) for _ in range(2))
    weight, bias = (torch.ones(channels) if affine else None for _ in range(2))
    operators.splash(x, a_pos, a_neg, hinges, len(own) and x.dim() - 2).sum().backward()
    running = torch.zeros(channels), torch.ones(channels)
    how = (training, 0.1, 1e-5)
    y, *_ = operators.batch_norm_splash(x, weight, bias, *running, a_pos, a_neg, hinges, *how)
    y.sum().backward()


def source_of(kernel: Any, given: dict[str, Any]) -> ASTSource:
    """What a launch would compile, with None and 1 as constants, and multiples of 16 noted."""
    signature, constants, attributes = {}, {}, {}
    for i, parameter in enumerate(kernel.params):
        name, value = parameter.name, given[parameter.name]
        is_one = type(value) is int and value == 1
        if parameter.is_constexpr or value is None or is_one:
            signature[name], constants[name] = "constexpr", value
            continue
        if isinstance(value, Tensor):
            signature[name] = POINTERS[value.dtype]
        else:
            signature[name] = parameter.annotation_type or ("i32" if type(value) is int else "fp32")
        if isinstance(value, Tensor) or (type(value) is int and value % 16 == 0):
            attributes[(i,)] = [["tt.divisibility", 16]]
    return ASTSource(kernel, signature, constants, attributes)


def assert_offsets_have_64_bits(name: str, ir: str) -> None:
    """Whatever walks a whole tensor must get past 2³¹ elements."""
    offsets = re.findall(r"tt\.addptr .*: tensor<[^,]*>, tensor<[\dx]*x(i\d+)>", ir)
    assert offsets, f"{name} has no offsets"
    assert set(offsets) == {"i64"}, f"{name} has offsets of {sorted(set(offsets))}"


def main() -> None:
    nvidia, amd = TARGETS
    launches = noted_launches()
    once = {kernel.__name__: (kernel, given) for kernel, given in launches}
    for target, chosen in ((nvidia, launches), (amd, list(once.values()))):
        for kernel, given in chosen:
            options = {"num_warps": given.get("num_warps", 4)}
            compiled = triton.compile(source_of(kernel, given), target=target, options=options)
            assert_offsets_have_64_bits(kernel.__name__, compiled.asm["ttir"])
            assert compiled.asm["cubin" if target is nvidia else "hsaco"]
            print(f"{kernel.__name__}-{target.backend}")


if __name__ == "__main__":
    main()
