"""What is measured: that contenders compute what they claim, and results are kept and shown."""

import ctypes
import gc
import json
import os
import subprocess
import sys
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from typer.testing import CliRunner

from splash_units.kernels import reference
from splash_units.lab.benchmarks import cases as benchmark_cases
from splash_units.lab.benchmarks import contenders, presenting, record, steps
from splash_units.lab.benchmarks.cases import Case, Target
from splash_units.lab.benchmarks.company import Usage, cores_taken_by_others, slowed
from splash_units.lab.benchmarks.published import published_ratio
from splash_units.lab.cli.app import app
from splash_units.lab.cli.bench import _chosen
from splash_units.lab.timing import Effort, Stopwatch
from splash_units.unit import BatchNormSplash, Splash

SHAPE = (4, 6, 5, 5)
BRIEFLY = Effort(seconds=0.01, fewest_rounds=2, most_rounds=3, warm_up_seconds=0.0)


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch):
    """Compiling takes seconds and changes no value: contenders ask for it, and get the function."""
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: function)


def expected(x, a_pos, a_neg, hinges):
    return reference.splash(x, a_pos, a_neg, hinges)


TORCH_UNITS = {
    "F.relu": F.relu,
    "nn.ReLU": F.relu,
    "F.silu": F.silu,
    "F.gelu": F.gelu,
    "torch.tanh": torch.tanh,
    "nn.PReLU": lambda x: F.prelu(x, torch.tensor([0.25])),
}


@pytest.mark.parametrize("name", TORCH_UNITS)
def test_torchs_own_units_are_what_they_are_called(name):
    inputs = contenders.draw_inputs(SHAPE)
    made = contenders.UNITS[name](inputs)
    torch.testing.assert_close(made.function(inputs.x), TORCH_UNITS[name](inputs.x))


SPLASHES = {
    **{
        k: v
        for k, v in {**contenders.UNITS, **contenders.EQUATIONS}.items()
        if k not in TORCH_UNITS
    },
    "S = 3": contenders.splash_function(3),
    "S = 31": contenders.splash_function(31),
}


@pytest.mark.parametrize("name", SPLASHES)
def test_everything_called_splash_computes_the_equation(name):
    inputs = contenders.draw_inputs(SHAPE)
    made = SPLASHES[name](inputs)
    a_pos, a_neg = made.parameters
    (hinges,) = made.constants
    if a_pos.dim() == 2:  # by channel
        a_pos, a_neg = (a[:, :, None, None] for a in (a_pos, a_neg))
    torch.testing.assert_close(
        made.function(inputs.x), expected(inputs.x, a_pos, a_neg, hinges), rtol=1e-5, atol=1e-6
    )
    assert a_neg.count_nonzero() > 0


def test_the_hinges_that_are_asked_for():
    inputs = contenders.draw_inputs(SHAPE)
    for s in benchmark_cases.HINGES:
        made = contenders.splash_function(s)(inputs)
        assert [len(p) for p in made.parameters] == [(s + 1) // 2] * 2


def test_both_passes_give_every_gradient():
    inputs = contenders.draw_inputs(SHAPE)
    made = contenders.splash_function()(inputs)
    found = contenders.forward_backward(lambda _: made, inputs)()
    y = expected(inputs.x, *made.parameters, *made.constants)
    wanted = torch.autograd.grad(y, (inputs.x, *made.parameters), inputs.upstream)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    assert inputs.x.grad is None  # nothing piles up


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_inputs_are_laid_out_as_told(dtype, channels_last):
    inputs = contenders.draw_inputs(SHAPE, dtype=dtype, channels_last=channels_last)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    for tensor in (inputs.x, inputs.upstream):
        assert tensor.dtype == dtype
        assert tensor.is_contiguous(memory_format=layout)
    assert inputs.x.requires_grad
    torch.testing.assert_close(inputs.x, contenders.draw_inputs(SHAPE, dtype=dtype).x)


def test_saved_bytes():
    inputs = contenders.draw_inputs(SHAPE)
    size = inputs.x.nbytes
    saved = {
        name: contenders.saved_bytes(make, inputs)
        for name, make in {
            "relu": contenders.UNITS["F.relu"],  # its output
            "splash": contenders.UNITS["splash()"],  # x and what the unit has
            "module": contenders.UNITS["Splash, by channel"],
            "twice": contenders.function(lambda x: x.exp().exp()),
            "views": contenders.function(lambda x: x.exp().view(-1).exp().view(2, -1) * 2),
        }.items()
    }
    assert saved == {"relu": size, "splash": 0, "module": 0, "twice": 2 * size, "views": 2 * size}


def test_peers_that_are_there_and_not(monkeypatch):
    monkeypatch.setattr(
        contenders,
        "_PEERS",
        {
            "there": contenders._Peer("torch.nn", "PReLU", lambda inputs: {"init": 0.5}),
            "broken": contenders._Peer("torch.nn", "NoSuchUnit", lambda inputs: {}),
            "absent": contenders._Peer("no_such_package.units", "Unit", lambda inputs: {}),
        },
    )
    assert contenders.missing_peers() == ("absent",)
    inputs = contenders.draw_inputs(SHAPE)
    peers = contenders.installed_peers()
    torch.testing.assert_close(
        peers["there"](inputs).function(inputs.x), F.leaky_relu(inputs.x, 0.5)
    )
    with pytest.raises(AttributeError, match="NoSuchUnit"):
        peers["broken"](inputs)


@pytest.mark.parametrize("name", ["mlp", "lenet5", "resnet20"])
def test_the_three_networks_start_as_one(name):
    """SPLASH starts as ReLU, so that the same network must give the same logits."""
    relu, splash, fused = (
        build(name) for build in (steps.with_relu, steps.with_splash, steps.with_fused_splash)
    )
    images, labels = steps.images_and_labels(name, relu, "cpu")
    assert len(images) == len(labels) == 128
    with torch.no_grad():
        logits = relu(images[:16])
        torch.testing.assert_close(splash(images[:16]), logits)
        torch.testing.assert_close(fused(images[:16]), logits, rtol=1e-3, atol=1e-4)

    def count(network, kind):
        return sum(type(module) is kind for module in network.modules())

    assert count(relu, nn.ReLU) == count(splash, Splash) > 0
    assert count(splash, nn.ReLU) == count(fused, nn.ReLU) == 0
    assert count(fused, BatchNormSplash) > 0
    assert count(fused, BatchNormSplash) + count(fused, Splash) == count(relu, nn.ReLU)


def test_a_training_step_trains_with_fresh_gradients(monkeypatch):
    built = []

    def build(name):
        built.append(steps.with_fused_splash(name, num_hinges=3))
        return built[-1]

    step = steps.training_step("mlp", build, "cpu")
    (network,) = built
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    step()
    first = {name: p.grad.clone() for name, p in network.named_parameters()}
    moved = [n for n, p in network.named_parameters() if not torch.equal(p, before[n])]
    assert {name.rpartition(".")[2] for name in moved} >= {"weight", "bias", "a_pos", "a_neg"}
    step()
    for name, p in network.named_parameters():
        if name.endswith("a_pos"):  # piled up, it would be about twice the first
            assert (p.grad - first[name]).norm() < 0.5 * first[name].norm()


ALL_CASES = benchmark_cases.cases(benchmark_cases.SECTIONS)


def test_cases_are_told_apart_by_section_and_name():
    keys = [(case.section, case.name) for case in ALL_CASES]
    assert len(set(keys)) == len(keys)
    assert {section for section, _ in keys} == set(benchmark_cases.SECTIONS)


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: f"{case.section}: {case.name}")
def test_cases_name_only_who_takes_part(case):
    present = {*case.contenders, *case.count}
    assert case.yardstick in present
    assert bool(case.contenders) != bool(case.count)
    assert {name for t in case.targets for name in (t.contender, t.against)} <= present
    assert set(case.published) <= present


def test_unknown_sections_are_refused():
    with pytest.raises(ValueError, match="'unit': choose from units"):
        benchmark_cases.cases(["unit"])


def test_published_ratios():
    assert published_ratio("mlp", 7) == pytest.approx(2.67, abs=0.005)
    assert published_ratio("lenet5", 7) == pytest.approx(1.71, abs=0.005)
    assert published_ratio("lenet5", 31) is None
    assert published_ratio("nin", 7) is None


@pytest.mark.parametrize("section", ["units", "batchnorm", "hinges", "sizes"])
def test_contenders_of_a_case_read_the_same_memory_and_leave_none(section, monkeypatch):
    drawn = []
    really_draw = contenders.draw_inputs

    def draw(*args, **options):
        inputs = really_draw(SHAPE, requires_grad=options["requires_grad"])
        drawn.append(weakref.ref(inputs))
        return inputs

    monkeypatch.setattr(benchmark_cases.units, "draw_inputs", draw)
    first, second = [c for c in benchmark_cases.cases([section]) if len(c.contenders) > 1][:2]
    works = [prepare() for prepare in first.contenders.values()]
    assert len(works) == len(first.contenders)
    assert len(drawn) == 1
    kept = next(iter(second.contenders.values()))()
    assert len(drawn) == 2
    del works
    gc.collect()
    assert drawn[0]() is None
    assert drawn[1]() is not None
    kept()


def test_forward_cases_record_no_gradients():
    recorded = {}

    def contender():
        weight = torch.ones(3, requires_grad=True)
        return lambda: recorded.setdefault(torch.is_grad_enabled(), (2 * weight).requires_grad)

    for grad in (False, True):
        case = Case("units", "x", "a", {"a": contender}, records_gradients=grad)
        record.measure(case, BRIEFLY, Stopwatch())
    assert recorded == {False: False, True: True}


def test_arithmetic_beside_the_contenders_tells_of_unseen_others():
    assert slowed([2.0, 1.0, 3.0, 3.0, 2.0]) == 2.0
    assert slowed([1.0, 1.0, 1.0]) == 1.0
    assert slowed([]) is None
    timed = record.measure(
        Case("units", "x", "a", {"a": lambda: lambda: None}), BRIEFLY, Stopwatch()
    )
    assert list(timed["contenders"]) == ["a"]
    assert timed["arithmetic_slowed"] >= 1.0
    counted = Case("memory", "x", "a", count={"a": lambda: 1})
    assert record.measure(counted, BRIEFLY, Stopwatch())["arithmetic_slowed"] is None


def test_what_others_take_is_what_everyone_took_but_us():
    before, after = Usage(wall=0.0, everyone=10.0, own=1.0), Usage(10.0, 25.0, 11.0)
    assert cores_taken_by_others(before, after) == 0.5
    assert cores_taken_by_others(before, Usage(10.0, 15.0, 11.0)) == 0.0
    assert cores_taken_by_others(None, after) is None
    assert cores_taken_by_others(before, before) is None


def fail():
    raise RuntimeError("out of luck")


@pytest.fixture
def example():
    """A measured case with a contender that fails, at a clock where work takes 1 s and 2 s."""
    now = [0.0]

    def takes(seconds):
        def run():
            now[0] += seconds

        return lambda: run

    case = Case(
        "units",
        "example",
        "F.relu",
        {"F.relu": takes(1.0), "splash()": takes(2.0), "broken": fail},
        targets=(Target("splash()", "F.relu", 1.5), Target("broken", "F.relu", 1.5)),
        published={"splash()": 2.67},
    )
    return record.measure(case, Effort(5, 5, 5, 0.0), Stopwatch(clock=lambda: now[0]))


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="another C library")
@pytest.mark.parametrize("megabytes", [12, 48])
def test_memory_that_was_freed_is_not_fetched_again(megabytes):
    program = (
        "import resource, sys, torch\n"
        "from splash_units.lab.benchmarks.record import keep_freed_memory\n"
        "torch.set_num_threads(1)\n"
        "if sys.argv[1] == 'kept': keep_freed_memory()\n"
        "def work(): return [torch.ones(int(sys.argv[2]) * 2**18) for _ in range(3)]\n"
        "def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "for _ in range(10): work()\n"
        "before = faults()\n"
        "for _ in range(10): work()\n"
        "print(faults() - before)"
    )
    # Left alone, glibc raises its thresholds as it goes, and keeps the memory or not by luck.
    eager = {**os.environ, "MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072"}
    command = [sys.executable, "-c", program]
    usual, kept = (
        int(subprocess.check_output([*command, how, str(megabytes)], text=True, env=eager))
        for how in ("usual", "kept")
    )
    assert kept < usual / 10


def test_a_record_has_all_there_is_to_say(example):
    assert json.loads(json.dumps(example, allow_nan=False)) == example
    assert example["contenders"]["splash()"] == {
        "median": 2.0,
        "lower": 2.0,
        "upper": 2.0,
        "rounds": 5,
        "calls_a_sample": 1,
        "ratio": {"median": 2.0, "lower": 2.0, "upper": 2.0},
    }
    assert example["contenders"]["broken"] == {"failure": "RuntimeError: out of luck"}
    met, failed = example["targets"]
    assert met["measured"]["median"] == 2.0
    assert failed["measured"] is None


def test_counting_goes_on_after_a_failure():
    case = Case(
        "memory", "m", "a", count={"a": lambda: 4, "b": fail, "c": lambda: 2},
        targets=(Target("c", "a", 1.0), Target("b", "a", 1.0)),
    )  # fmt: skip
    found = record.measure(case, BRIEFLY, Stopwatch())
    assert found["measures"] == "bytes"
    assert found["contenders"]["c"] == {"bytes": 2}
    assert "out of luck" in found["contenders"]["b"]["failure"]
    assert [t["measured"] and t["measured"]["median"] for t in found["targets"]] == [0.5, None]
    assert presenting.case_rows(found).rows[1][1].startswith("failed: ")


def test_tables_show_ratios_targets_and_failures(example):
    table = presenting.case_rows(example)
    assert table.columns == ("", "median (10–90 %)", "× F.relu", "target", "met", "paper")
    relu, splash, broken = table.rows
    assert relu == ("F.relu", "1 s (1 s–1 s)", "1.00 (1.00–1.00)", "", "", "–")
    assert splash[2:] == ("2.00 (2.00–2.00)", "≤ 1.50", "no, 2.00", "2.67")
    assert broken[1:3] == ("failed: RuntimeError: out of luck", "–")
    assert all(len(row) == len(table.columns) for row in table.rows)
    targets = presenting.targets_rows([example])
    assert [row[-1] for row in targets.rows] == ["no", "–"]


def test_markdown_is_a_table(example):
    lines = presenting.markdown(presenting.case_rows(example)).splitlines()
    assert lines[1] == "| --- | --- | --- | --- | --- | --- |"
    assert {line.count("|") for line in lines} == {7}


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.5, "2.5 s"), (0.00123, "1.23 ms"), (4.2e-6, "4.2 µs")]
)
def test_seconds_are_readable(seconds, text):
    assert presenting.seconds_text(seconds) == text


def test_a_file_keeps_what_was_not_measured_again(tmp_path, example):
    path = tmp_path / "new folder" / "results.json"
    other = {**example, "name": "other"}
    record.save(path, {"command": "first"}, [example, other])
    record.save(path, {"command": "second"}, [{**example, "yardstick": "again"}])
    found = [(run["command"], case["name"], case["yardstick"])
             for run, case in record.all_cases(record.load(path))]  # fmt: skip
    assert found == [("first", "other", "F.relu"), ("second", "example", "again")]
    record.save(path, {"command": "third"}, [example, other])
    assert [run["command"] for run in record.load(path)["runs"]] == ["third"]


@pytest.fixture
def splash(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, ["bench", *arguments])


def test_bench_prints_tables_and_keeps_results(splash, tmp_path):
    done = splash(
        "sizes", "--only", "256 elements", "--quick", "--device", "cpu", "--output", "r.json"
    )
    assert done.exit_code == 0, done.output
    assert "measuring sizes: 256 elements, forward" in done.output
    (run,) = record.load(tmp_path / "r.json")["runs"]
    assert run["device"] == "cpu"
    assert run["versions"]["torch"] == torch.__version__
    assert {"command", "commit", "when", "threads", "kernel", "processor", "memory_gb"} <= set(run)
    assert {case["name"] for case in run["cases"]} == {
        "256 elements, forward",
        "256 elements, forward + backward",
    }
    for case in run["cases"]:
        assert set(case["contenders"]) == {"F.relu", "splash()"}
        assert all(c["median"] > 0 for c in case["contenders"].values())


def test_bench_joins_what_several_passes_took(splash, tmp_path):
    asked = ("sizes", "--only", "256 elements", "--quick", "--device", "cpu", "--output", "r.json")
    done = splash(*asked, "--passes", "3")
    assert done.exit_code == 0, done.output
    order = [line for line in done.output.splitlines() if line.startswith("measuring")]
    assert [line.split(":")[0] for line in order] == [
        f"measuring pass {number} of 3" for number in (1, 1, 2, 2, 3, 3)
    ]
    assert len({line.partition(": ")[2] for line in order[:2]}) == 2
    (run,) = record.load(tmp_path / "r.json")["runs"]
    for case in run["cases"]:
        assert case["passes"] == 3
        assert all(c["rounds"] >= 3 * 2 for c in case["contenders"].values())
    assert done.output.count("256 elements, forward + backward\n") == 3 + 1


def test_a_whole_name_means_one_case_and_a_part_means_all_that_have_it():
    there = benchmark_cases.cases(["sizes"])
    (one,) = _chosen(there, "256 elements, forward")
    assert one.name == "256 elements, forward"
    assert len(_chosen(there, "256 ELEMENTS")) == 2
    assert _chosen(there, None) == there


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["unit"], "unknown section 'unit'"),
        (["units", "--device", "tpu"], "unknown device 'tpu'"),
        (["units", "--only", "nothing"], "no case has 'nothing' in its name"),
        (["sizes", "--output", "notes.json"], "notes.json holds no benchmark results"),
    ],
)
def test_mistakes_are_told_before_anything_is_measured(splash, tmp_path, arguments, message):
    (tmp_path / "notes.json").write_text("{}")
    done = splash(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert "measuring" not in done.output
