"""Training: the same bits every time, and what it says on the way."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import tiny_lab  # noqa: F401 - registers the network "tiny"
import torch
from torch import nn
from torch.nn import functional as F

from splash_units import catalogue
from splash_units.lab import data, training
from splash_units.lab.assembly import (
    build_network,
    build_optimizer,
    laid_out,
    network_arguments,
    restore,
    set_learning_rate,
    slopes_of,
    snapshot,
    state_of,
)
from splash_units.lab.events import (
    Checkpoint,
    Diverged,
    EpochDone,
    Finished,
    Progress,
    Started,
)
from splash_units.lab.plan import plan
from splash_units.lab.spec import TrainSpec
from splash_units.lab.training import diverged, evaluate, part_of, train

CPU = torch.device("cpu")
TINY = TrainSpec(model="tiny", scale="smoke", augment="moderate", batch_size=32, epochs=3)


def events_of(spec, **options):
    return list(train(spec, threads=1, **options))


def end_of(spec, **options):
    end = events_of(spec, **options)[-1]
    assert isinstance(end, Finished)
    return end


def without_time(epoch):
    return replace(epoch, seconds=0.0, test_seconds=0.0)


def assert_same_bits(one, two):
    assert one.state.keys() == two.state.keys()
    for name, tensor in one.state.items():
        assert torch.equal(tensor, two.state[name]), name
    assert without_time(one.last) == without_time(two.last)
    assert without_time(one.best) == without_time(two.best)


@pytest.fixture(scope="module")
def digits():
    return data.load("digits")


@pytest.fixture(scope="module")
def uninterrupted():
    return end_of(TINY)


def test_the_order_of_events():
    kinds = [type(event) for event in events_of(TINY)]
    assert kinds[0] is Started
    assert kinds[-1] is Finished
    assert kinds.count(EpochDone) == 3
    assert set(kinds[1:-1]) == {Progress, EpochDone}


@pytest.mark.parametrize("model", ["tiny", "lenet5"])
def test_two_runs_of_a_spec_end_with_the_same_bits(model):
    spec = TINY.model_copy(update={"model": model, "epochs": 1})
    assert_same_bits(end_of(spec), end_of(spec))


def test_nothing_else_in_the_process_matters(uninterrupted):
    events = []
    for at, event in enumerate(train(TINY, threads=1)):
        events.append(event)
        torch.manual_seed(at)
        torch.rand(100 + at)
        torch.set_num_threads(2 if at % 2 else 1)
    torch.set_num_threads(1)
    assert_same_bits(events[-1], uninterrupted)


def test_the_process_gets_its_generator_and_threads_back():
    torch.set_num_threads(2)
    torch.manual_seed(11)
    for _ in train(TINY, threads=1):
        assert torch.get_num_threads() == 2
    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(11)))
    torch.set_num_threads(1)


def test_dropout_draws_anew_at_every_step_but_the_same_for_a_seed():
    draws = []
    for step in (0, 1, 0):
        training.seed_dropout(70 + step, CPU)
        draws.append(F.dropout(torch.ones(50)))
    assert torch.equal(draws[0], draws[2])
    assert not torch.equal(draws[0], draws[1])


@pytest.mark.parametrize("stop_after", [1, 2, 3])
@pytest.mark.parametrize("change", [{}, {"optimizer": "adam", "lr": 0.01}], ids=["sgd", "adam"])
def test_a_resumed_run_ends_with_the_same_bits(change, stop_after, uninterrupted):
    spec = TINY.model_copy(update=change)
    whole = uninterrupted if not change else end_of(spec)
    saved = None
    for event in train(spec, threads=1):
        if isinstance(event, EpochDone) and event.numbers.epoch == stop_after:
            tensors = {
                k: v.detach().contiguous().clone() for k, v in event.checkpoint.tensors.items()
            }
            saved = Checkpoint(event.checkpoint.last, event.checkpoint.best, tensors)
            break
    events = events_of(spec, resume=saved)
    assert events[0].epochs_done == stop_after
    assert sum(isinstance(event, EpochDone) for event in events) == 3 - stop_after
    assert_same_bits(events[-1], whole)


def test_a_resume_without_the_momentum_would_be_noticed(uninterrupted):
    """What the test above compares does depend on what it says it does."""
    for event in train(TINY, threads=1):
        if isinstance(event, EpochDone):
            tensors = {
                name: value.detach().contiguous().clone()
                for name, value in event.checkpoint.tensors.items()
                if name.startswith("network/")
            }
            saved = Checkpoint(event.checkpoint.last, event.checkpoint.best, tensors)
            break
    with pytest.raises(AssertionError):
        assert_same_bits(end_of(TINY, resume=saved), uninterrupted)


def test_seeds_differ_in_start_order_augmentation_and_dropout(digits):
    first, second = (TINY.model_copy(update={"seed": seed}) for seed in (0, 1))
    arguments = network_arguments(digits)
    starts = [build_network(spec, arguments).state_dict() for spec in (first, second)]
    assert not torch.equal(starts[0]["head.weight"], starts[1]["head.weight"])
    planned = plan(first, 256, 256)
    batches = [
        next(training.training_batches(spec, planned, digits, epoch, True))
        for spec, epoch in ((first, 0), (first, 0), (first, 1), (second, 0))
    ]
    assert torch.equal(batches[0][0], batches[1][0])
    assert not torch.equal(batches[0][1], batches[2][1])
    assert not torch.equal(batches[0][1], batches[3][1])


def test_units_of_one_seed_start_from_the_same_kernels(digits):
    arguments = network_arguments(digits)
    relu, prelu = (
        build_network(TrainSpec(unit=unit), arguments).state_dict() for unit in ("relu", "prelu")
    )
    assert torch.equal(relu["body.conv2.weight"], prelu["body.conv2.weight"])


def test_a_network_is_the_same_whatever_the_global_generator_is_at(digits):
    one = build_network(TINY, network_arguments(digits)).state_dict()
    torch.rand(17)
    two = build_network(TINY, network_arguments(digits)).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_slopes_are_told_at_the_start_early_and_after_every_epoch():
    events = events_of(TINY.model_copy(update={"batch_size": 16}))  # 16 steps an epoch
    early = [event for event in events if isinstance(event, Progress) and event.slopes is not None]
    assert [(event.epoch, event.step) for event in early] == [(1, 1), (1, 2), (1, 4), (1, 8)]
    after = [event.slopes for event in events if isinstance(event, EpochDone)]
    told = [events[0].slopes, *(event.slopes for event in early), *after]
    assert len(told) == 8
    names = {name for name in told[0] if name.endswith(("a_pos", "a_neg"))}
    assert len(names) == len(told[0]) == 4
    for one, next_one in pairwise(told):
        assert any(not torch.equal(one[name], next_one[name]) for name in names)
    for name, slope in after[-1].items():
        assert torch.equal(slope, events[-1].state[name])
    assert {name.rpartition(".")[2] for name in events[0].constants} == {"hinges"}


def test_the_last_epoch_is_the_result_and_the_best_is_told_beside():
    spec = TINY.model_copy(update={"epochs": 6, "lr": 0.3})
    events = events_of(spec)
    errors = [event.numbers.test_error for event in events if isinstance(event, EpochDone)]
    assert events[-1].last.test_error == errors[-1]
    assert events[-1].last.epoch == 6
    assert events[-1].best.test_error == min(errors)
    assert events[-1].best.epoch == 1 + errors.index(min(errors))


def test_training_learns():
    spec = TINY.model_copy(update={"augment": "none", "fraction": 1.0, "epochs": 8, "lr": 0.1})
    assert end_of(spec).last.test_error < 0.15


def test_the_numbers_are_those_of_a_plain_loop(digits):
    """One epoch without dropout and augmentation, written again without any of our machinery."""
    spec = TrainSpec(model="lenet5", unit="relu", scale="smoke", epochs=1, lr=0.05)
    end = end_of(spec)
    network = build_network(spec, network_arguments(digits))
    kernels = [p for p in network.parameters() if p.dim() > 1]
    others = [p for p in network.parameters() if p.dim() <= 1]
    optimizer = torch.optim.SGD(
        [{"params": kernels, "weight_decay": 2e-4}, {"params": others}],
        lr=0.05,
        momentum=0.9,
        nesterov=True,
    )
    used = part_of(len(digits.train_labels), 256)
    order = used[torch.randperm(256, generator=training.stream(0, "order", 0))]
    total, wrong = 0.0, 0
    for rows in order.split(128):
        x, y = digits.train_images[rows].float() / 255, digits.train_labels[rows]
        logits = network(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(y)
        wrong += int((logits.argmax(1) != y).sum())
    assert end.last.train_loss == pytest.approx(total / 256, rel=1e-5)
    assert end.last.train_error == wrong / 256
    for name, value in network.state_dict().items():
        torch.testing.assert_close(end.state[name], value, rtol=1e-4, atol=1e-6)


def test_evaluate_counts_as_a_plain_loop_does_and_keeps_the_mode(digits):
    network = build_network(TINY, network_arguments(digits))
    assert network.training
    tally = evaluate(network, digits, 359)
    assert network.training
    network.eval()
    logits = network(digits.test_images.float() / 255)
    loss = F.cross_entropy(logits, digits.test_labels)
    assert tally.loss() == pytest.approx(loss.item(), rel=1e-5)
    assert tally.error() == int((logits.argmax(1) != digits.test_labels).sum()) / 359


def test_a_part_of_the_data_is_the_same_for_all_and_holds_all_classes(digits):
    part = part_of(1438, 200)
    assert len(part.unique()) == 200
    assert torch.equal(part, part_of(1438, 200))
    assert len(digits.train_labels[part].unique()) == 10
    assert part.max() > 1000
    assert torch.equal(part_of(5, 5), torch.arange(5))


def test_slopes_have_their_factor_and_no_decay(digits):
    spec = TrainSpec(slope_lr=0.25, weight_decay=0.01)
    network = build_network(spec, network_arguments(digits))
    optimizer = build_optimizer(spec, plan(spec, 1438, 359), network)
    set_learning_rate(optimizer, 0.4, spec.slope_lr)
    groups = {group["name"]: group for group in optimizer.param_groups}
    assert {name: group["lr"] for name, group in groups.items()} == {
        "kernels": 0.4,
        "slopes": 0.1,
        "others": 0.4,
    }
    decays = {name: group["weight_decay"] for name, group in groups.items()}
    assert decays == {"kernels": 0.01, "slopes": 0.0, "others": 0.0}
    assert len(groups["slopes"]["params"]) == len(slopes_of(network)) == 8
    assert all(p.dim() > 1 for p in groups["kernels"]["params"])


def test_the_slopes_of_a_users_own_unit_are_slopes(digits):
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(3, 3))

        def forward(self, x):
            return torch.relu(x) * self.gain.mean()

    catalogue.register("scaled_for_test", lambda features, dim: Scaled(), replace=True)
    spec = TINY.model_copy(update={"unit": "scaled_for_test", "epochs": 1, "slope_lr": 0.5})
    network = build_network(spec, network_arguments(digits))
    optimizer = build_optimizer(spec, plan(spec, 1438, 359), network)
    slopes = next(group for group in optimizer.param_groups if group["name"] == "slopes")
    assert [tuple(p.shape) for p in slopes["params"]] == [(3, 3), (3, 3)]
    assert slopes["weight_decay"] == 0
    assert len(events_of(spec)[0].slopes) == 2


def test_a_loss_that_is_not_finite_ends_the_run_as_a_result():
    spec = TINY.model_copy(
        update={"unit": "splash_literal", "lr": 1e4, "epochs": 5, "augment": "none"}
    )
    events = events_of(spec)
    end = events[-1]
    assert isinstance(end, Diverged)
    assert end.epoch <= 5
    done = sum(isinstance(event, EpochDone) for event in events)
    assert done == end.epoch - 1
    assert end.layer in {name.rpartition(".")[0] for name in events[0].slopes}
    assert end.largest_slope is None or end.largest_slope > 100


def test_the_layer_with_the_largest_slope_is_named(digits):
    network = build_network(TINY, network_arguments(digits))
    slopes = slopes_of(network)
    names = list(slopes)
    before = snapshot(slopes)
    with torch.no_grad():
        slopes[names[2]][1] = -1e12
    told = diverged("training", 4, 7, network, before)
    assert (told.epoch, told.step, told.loss) == (5, 7, "training")
    assert told.layer == names[2].rpartition(".")[0]
    assert told.largest_slope == pytest.approx(1e12)
    with torch.no_grad():
        slopes[names[0]][0] = math.nan
    told = diverged("training", 4, 7, network, before)
    assert told.layer == names[0].rpartition(".")[0]
    assert told.largest_slope is None
    # Once NaN is everywhere, only what was before can tell.
    before[names[3]][0] = 50.0
    with torch.no_grad():
        for slope in slopes.values():
            slope.fill_(math.nan)
    told = diverged("training", 4, 7, network, before)
    assert told.layer == names[3].rpartition(".")[0]
    assert told.largest_slope == 50


def test_a_network_without_slopes_can_diverge_too():
    spec = TINY.model_copy(update={"unit": "relu", "lr": 1e30, "augment": "none"})
    end = events_of(spec)[-1]
    assert isinstance(end, Diverged)
    assert end.layer is None


def test_seconds_are_split_where_asked():
    plain = end_of(TINY)
    split = end_of(TINY, split_seconds=True)
    assert plain.last.split is None
    assert set(split.last.split) == {"data", "forward", "backward", "step"}
    assert 0 < sum(split.last.split.values()) <= split.last.seconds
    assert_same_bits(replace(split, last=plain.last, best=plain.best), plain)


def test_bfloat16_trains_and_keeps_float32_parameters():
    end = end_of(TINY.model_copy(update={"precision": "bfloat16"}))
    assert math.isfinite(end.last.train_loss)
    assert {t.dtype for t in end.state.values()} == {torch.float32, torch.int64}
    assert end.last.train_loss != end_of(TINY).last.train_loss


def test_compile_is_asked_for_and_keeps_the_names(monkeypatch, uninterrupted):
    asked = []
    monkeypatch.setattr(torch, "compile", lambda network: asked.append(network) or network)
    end = end_of(TINY.model_copy(update={"compile": True}))
    assert len(asked) == 1
    assert_same_bits(end, uninterrupted)


def test_the_learning_rate_follows_the_recipe():
    spec = TINY.model_copy(update={"model": "lenet5", "recipe": "rescaled", "epochs": 4})
    events = events_of(spec.model_copy(update={"unit": "relu", "batch_size": 128}))
    told = [event.numbers.lr for event in events if isinstance(event, EpochDone)]
    assert told == pytest.approx([0.01, 0.01, 0.005, 0.001])


def test_wide_networks_are_laid_out_channels_last_and_narrow_ones_are_not(digits):
    layouts = {}
    for model in ("lenet5", "resnet20", "mlp"):
        spec = TrainSpec(model=model, unit="relu")
        network = laid_out(build_network(spec, network_arguments(digits)))
        kernels = [p for p in network.parameters() if p.dim() == 4 and p.shape[1] > 1]
        layouts[model] = [p.is_contiguous(memory_format=torch.channels_last) for p in kernels]
    assert layouts == {"lenet5": [False], "resnet20": [True] * 20, "mlp": []}


def test_restore_brings_back_every_tensor_and_the_layout(digits):
    spec = TrainSpec(scale="smoke")
    planned = plan(spec, 1438, 359)
    arguments = network_arguments(digits)
    networks = [
        build_network(spec.model_copy(update={"seed": seed}), arguments).to(
            memory_format=torch.channels_last
        )
        for seed in (0, 1)
    ]
    optimizers = [build_optimizer(spec, planned, network) for network in networks]
    x, y = torch.rand(8, 1, 32, 32), torch.arange(8)
    F.cross_entropy(networks[0](x), y).backward()
    optimizers[0].step()
    saved = {
        k: v.detach().contiguous().clone() for k, v in state_of(networks[0], optimizers[0]).items()
    }
    restore(networks[1], optimizers[1], saved)
    again = state_of(networks[1], optimizers[1])
    assert again.keys() == saved.keys()
    assert all(torch.equal(again[name], saved[name]) for name in saved)
    kernel = networks[1].get_parameter("body.conv2.weight")
    momentum = optimizers[1].state[kernel]["momentum_buffer"]
    assert momentum.stride() == kernel.stride()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "lenet6"}, "unknown network 'lenet6'.*lenet5"),
        ({"data": "digit"}, "unknown data set 'digit'.*digits"),
        ({"unit": "spalsh"}, "unknown unit 'spalsh'.*splash"),
        ({"recipe": "primry"}, "no variant 'primry'.*primary"),
        ({"unit_options": {"num_hinges": 4}}, "num_hinges must be odd"),
        ({"unit_options": {"hinge": 4}}, "hinge"),
        ({"model_options": {"depth": 4}, "model": "lenet5"}, "no option 'depth'"),
    ],
)
def test_unknown_names_are_answered_before_anything_runs(change, message):
    with pytest.raises((ValueError, TypeError), match=message):
        next(train(TINY.model_copy(update=change)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "gpu"}, "unknown device 'gpu'"),
        ({"device": "meta"}, "device 'meta' is not there"),
        ({"threads": 0}, "threads = 0: must be at least 1"),
    ],
)
def test_a_device_or_threads_that_cannot_be_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        next(train(TINY, **options))
