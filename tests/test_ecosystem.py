"""Converted networks with the rest of torch: each place compares numbers with plain eager torch."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from splash_units import Splash
from splash_units.convert import convert


class Small(nn.Module):
    """A little of everything: a module, a call, batch norm, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.act = nn.ReLU(inplace=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.norm(self.conv(x)))
        x = F.relu(self.head(x.mean((2, 3))))
        return F.dropout(x, 0.1, training=self.training)


def small(share: str = "layer") -> nn.Module:
    """A converted network whose units have learned something."""
    torch.manual_seed(0)
    network = convert(Small(), share=share, example_inputs=images())
    with torch.no_grad():
        for unit in network.modules():
            if isinstance(unit, Splash):
                unit.a_pos += 0.2 * torch.randn_like(unit.a_pos)
                unit.a_neg += 0.2 * torch.randn_like(unit.a_neg)
    return network.eval()


def images(count: int = 5, seed: int = 1) -> Tensor:
    return 2 * torch.randn(count, 2, 6, 6, generator=torch.Generator().manual_seed(seed))


def gradients(network: nn.Module, x: Tensor) -> dict[str, Tensor]:
    network.zero_grad()
    network(x).square().sum().backward()
    return {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}


def assert_same(got: dict[str, Tensor], expected: dict[str, Tensor], **tolerance: float) -> None:
    assert got.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(got[name], expected[name], **tolerance)


# Inside torch 2.13, by torch 2.13's own compiler, exporter and forward-mode rules.
TORCHSCRIPT_INSIDE = "ignore:`torch.jit.script.*is deprecated:DeprecationWarning:torch.jit._script"
LEAF_SPEC_INSIDE = "ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning:copyreg"


@pytest.mark.filterwarnings(TORCHSCRIPT_INSIDE)
def test_compile_in_one_graph() -> None:
    torch._dynamo.reset()
    network = small()
    compiled = torch.compile(network, fullgraph=True)
    torch.testing.assert_close(compiled(images()), network(images()), rtol=1e-5, atol=1e-6)
    expected = gradients(network, images())
    assert_same(gradients(compiled, images()), {f"_orig_mod.{k}": v for k, v in expected.items()})


def test_compile_captures_one_graph_in_both_modes() -> None:
    torch._dynamo.reset()
    network = small("channel")
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    for mode in (True, False):
        network.train(mode)
        torch.manual_seed(2)
        expected = gradients(network, images())
        torch.manual_seed(2)
        got = gradients(compiled, images())
        assert_same(got, {f"_orig_mod.{k}": v for k, v in expected.items()})


@pytest.mark.parametrize("share", ["layer", "channel"])
def test_export(share: str) -> None:
    network = small(share)
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(network, (images(),), dynamic_shapes=({0: batch},))
    for count in (2, 5, 9):
        torch.testing.assert_close(program.module()(images(count)), network(images(count)))


@pytest.mark.filterwarnings(LEAF_SPEC_INSIDE)
def test_onnx_with_any_batch_size(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    network = small("channel")
    file = tmp_path / "network.onnx"
    batch = torch.export.Dim("batch", min=2)
    torch.onnx.export(
        network, (images(),), file, dynamo=True, dynamic_shapes=({0: batch},), verbose=False
    )
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    for count in (2, 5, 9):
        (got,) = session.run(None, {session.get_inputs()[0].name: images(count).numpy()})
        with torch.no_grad():
            expected = network(images(count)).numpy()
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings(TORCHSCRIPT_INSIDE)
def test_functional_call_vmap_and_jvp() -> None:
    network = small()
    state = dict(network.state_dict())
    x = images()
    assert torch.equal(torch.func.functional_call(network, state, (x,)), network(x))

    def loss(parameters: dict[str, Tensor], image: Tensor) -> Tensor:
        return torch.func.functional_call(network, parameters, (image[None],)).square().sum()

    parameters = {name: p.detach() for name, p in network.named_parameters()}
    per_sample = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    for i, image in enumerate(x):
        expected = gradients(network, image[None])
        assert_same({name: g[i] for name, g in per_sample.items()}, expected)

    direction = torch.randn_like(x)
    _, along = torch.func.jvp(network, (x,), (direction,))
    jacobian = torch.autograd.functional.jvp(network, x, direction)[1]
    torch.testing.assert_close(along, jacobian, rtol=1e-5, atol=1e-6)


def test_an_ensemble_of_units_with_vmap() -> None:
    units = [Splash(init="random") for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(units)
    x = torch.randn(3, 7, 4)

    def call(p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(units[0], (p, b), (x,))

    got = torch.func.vmap(call)(parameters, buffers, x)
    expected = torch.stack([unit(x_i) for unit, x_i in zip(units, x, strict=True)])
    torch.testing.assert_close(got, expected)


def test_double_backward() -> None:
    unit = Splash(init="random", grad_scale=1.0).double()
    x = (3 * torch.randn(4, 5, dtype=torch.float64)).requires_grad_()

    def call(x: Tensor, a_pos: Tensor, a_neg: Tensor) -> Tensor:
        return torch.func.functional_call(unit, {"a_pos": a_pos, "a_neg": a_neg}, (x,))

    slopes = [a.detach().clone().requires_grad_() for a in (unit.a_pos, unit.a_neg)]
    assert torch.autograd.gradcheck(call, (x, *slopes))
    assert torch.autograd.gradgradcheck(call, (x, *slopes))


def test_a_gradient_penalty_reaches_the_slopes() -> None:
    network = small().double()
    x = images().double().requires_grad_()
    slopes = network.act.a_pos

    def penalty() -> Tensor:
        (slope,) = torch.autograd.grad(network(x).sum(), x, create_graph=True)
        return slope.square().sum()

    (analytic,) = torch.autograd.grad(penalty(), slopes)
    step = 1e-6
    sharing = 4 * 4 * 4  # elements of one sample; grad_scale="auto" is 3 over the root of it
    for row in range(len(slopes)):
        values = []
        for signed in (step, -step):
            slopes.data[row] += signed
            values.append(penalty().item())
            slopes.data[row] -= signed
        numeric = (values[0] - values[1]) / (2 * step) * 3 / sharing**0.5
        assert analytic[row].item() == pytest.approx(numeric, rel=1e-4, abs=1e-8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_keeps_its_dtype(dtype: torch.dtype) -> None:
    network, plain = small(), Small().eval()
    with torch.autocast("cpu", dtype=dtype):
        out = network(images())
        assert out.dtype is plain(images()).dtype
        assert network.act(torch.ones(2, dtype=dtype)).dtype is dtype
        expected = gradients(network, images())
    assert {g.dtype for g in expected.values()} == {torch.float32}
    torch.testing.assert_close(out.float(), network(images()), rtol=0.1, atol=0.1)


def test_deepcopy_learns_on_its_own() -> None:
    network = small()
    again = copy.deepcopy(network)
    assert torch.equal(again(images()), network(images()))
    before = {name: t.clone() for name, t in network.state_dict().items()}
    optimizer = torch.optim.SGD(again.parameters(), lr=0.1)
    gradients(again, images())
    optimizer.step()
    assert_same(dict(network.state_dict()), before, rtol=0, atol=0)
    assert not torch.equal(again.act.a_pos, network.act.a_pos)


def test_a_saved_state_loads(tmp_path: Path) -> None:
    network = small("channel")
    torch.save(network.state_dict(), tmp_path / "state.pt")
    again = convert(Small(), share="channel", example_inputs=images()).eval()
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(again(images()), network(images()))


@pytest.mark.parametrize(("before", "after"), [("native", "reference"), ("reference", "native")])
def test_a_state_saved_under_one_kernel_serves_under_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str
) -> None:
    monkeypatch.setenv("SPLASH_KERNEL", "native")
    try:
        Splash()(torch.ones(1))
    except RuntimeError as reason:
        pytest.skip(str(reason))

    def trained_under(kernel: str, network: nn.Module) -> nn.Module:
        monkeypatch.setenv("SPLASH_KERNEL", kernel)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
        for seed in range(3):
            gradients(network, images(seed=seed))
            optimizer.step()
        return network

    saved = trained_under(before, small("channel"))
    torch.save(saved.state_dict(), tmp_path / "state.pt")
    expected = saved(images())
    monkeypatch.setenv("SPLASH_KERNEL", after)
    loaded = convert(Small(), share="channel", example_inputs=images()).eval()
    loaded.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert_same(dict(loaded.state_dict()), dict(saved.state_dict()), rtol=0, atol=0)
    torch.testing.assert_close(loaded(images()), expected, rtol=1e-5, atol=1e-6)
    # And training goes on alike.
    further = (trained_under(kernel, copy.deepcopy(loaded)) for kernel in (before, after))
    states = [dict(network.state_dict()) for network in further]
    assert_same(*states, rtol=1e-4, atol=1e-5)


DISTRIBUTED = """
import os
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, {tests!r})
from test_ecosystem import gradients, images, small

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + {store!r}, rank=rank, world_size=2)
network = DistributedDataParallel(small())
mine = images(8).chunk(2)[rank]
mean = gradients(network, mine)
if rank == 0:
    torch.save(mean, {result!r})
del network
dist.barrier()  # or the first to leave would cut off the other
dist.destroy_process_group()
# DDP's reducer and its logger own each other, so the group's threads outlive even that call. One
# that lets go of its last tensor while Python is being torn down would abort the process.
os._exit(0)
"""


def test_two_processes_have_the_gradients_of_one(tmp_path: Path) -> None:
    """Each process sees half the batch; DDP takes the mean, so twice that is the whole batch's."""
    script = DISTRIBUTED.format(
        tests=str(Path(__file__).parent),
        store=str(tmp_path / "store"),
        result=str(tmp_path / "gradients.pt"),
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(rank)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(errors)
    mean = torch.load(tmp_path / "gradients.pt", weights_only=True)
    expected = gradients(small(), images(8))
    got = {name.removeprefix("module."): 2 * gradient for name, gradient in mean.items()}
    assert_same(got, expected)
