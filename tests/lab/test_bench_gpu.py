"""`splash bench --device cuda` as far as it goes without a GPU: where work lands, who waits."""

import pytest
import torch
from torch import Tensor
from torch.optim import SGD
from typer.testing import CliRunner

from splash_units.kernels import triton
from splash_units.lab.benchmarks import cases as benchmark_cases
from splash_units.lab.benchmarks import record, steps
from splash_units.lab.benchmarks.contenders import kernel_in_use
from splash_units.lab.cli import bench
from splash_units.lab.cli.app import app

ELSEWHERE = "meta"  # stands in for a GPU: whatever was left on the CPU can't be mixed with it


@pytest.fixture
def a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"a fine {device} device")


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def bench_on_cuda():
    return CliRunner().invoke(app, ["bench", "units", "--device", "cuda"])


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_it_says_so_before_anything_is_measured():
    done = bench_on_cuda()
    assert done.exit_code == 2
    assert f"torch {torch.__version__} sees no GPU here" in done.stderr
    assert "measuring" not in done.output


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(("cuda", "told"), [(None, True), ("13.0", False)])
def test_a_torch_that_will_never_see_one_is_named_as_the_cause(monkeypatch, cuda, told):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.version, "hip", None)
    assert ("built for the CPU alone" in bench_on_cuda().stderr) == told


@pytest.mark.usefixtures("a_gpu")
@pytest.mark.parametrize(("asked", "taken"), [("cuda", "cuda"), ("auto", "cuda"), ("cpu", "cpu")])
def test_a_gpu_is_taken_unless_the_cpu_is_asked_for(asked, taken):
    assert bench._device(asked) == taken


def test_a_gpu_is_waited_for():
    assert bench._stopwatch("cuda").synchronize is torch.cuda.synchronize
    assert bench._stopwatch("cpu").synchronize is not torch.cuda.synchronize


@pytest.mark.usefixtures("a_gpu")
@pytest.mark.parametrize(
    ("outcome", "kernel"),
    [(triton.Operators(torch.relu, torch.relu), "triton"), ("no triton", "reference: no triton")],
)
def test_the_record_names_the_gpu_and_the_kernel(monkeypatch, outcome, kernel):
    monkeypatch.setattr(triton, "_outcome", outcome)
    run = record.describe_run(["splash", "bench"], "cuda")
    assert run["device"] == "a fine cuda device"
    assert run["kernel"] == kernel_in_use("cuda:1") == kernel


def test_a_device_without_a_kernel_has_the_equation():
    assert kernel_in_use("mps") == "reference: there is no kernel for mps"


@pytest.mark.parametrize("section", ["units", "batchnorm", "sizes"])
def test_contenders_work_where_they_are_told_to(section):
    there = benchmark_cases.cases([section], ELSEWHERE)
    shown = [case for case in there if case.name.startswith(("(128, 256)", "256 "))]
    assert shown
    for case in shown:
        for name, prepare in case.contenders.items():
            if name == "equation, compiled":  # the compiler's, and not asked on which device
                continue
            with torch.set_grad_enabled(case.records_gradients):
                made = prepare()()
            for result in (made,) if isinstance(made, Tensor) else made:
                assert result.device.type == ELSEWHERE, (case.name, name)


def test_whole_steps_work_where_they_are_told_to(monkeypatch):
    placed = []

    def optimizer(parameters, **options):
        parameters = list(parameters)
        placed.extend(parameters)
        return SGD(parameters, **options | {"fused": False})  # there is none for `meta`

    monkeypatch.setattr(torch.optim, "SGD", optimizer)
    for build in (steps.with_relu, steps.with_splash, steps.with_fused_splash):
        steps.training_step("lenet5", build, ELSEWHERE)()
    assert {p.device.type for p in placed} == {ELSEWHERE}
    assert all(p.grad is not None and p.grad.device.type == ELSEWHERE for p in placed)
