"""What every attack promises, whatever its method."""

import pytest
import torch
from attack_models import Linear, digits, linear_problem
from torch import nn

from splash_units.lab.attacks import (
    APGD,
    FGSM,
    PGD,
    Attack,
    Boundary,
    CarliniWagnerL2,
    Outcome,
    Pixels,
    Square,
    UniformNoise,
    WorstCase,
)

ATTACKS = [
    FGSM(0.1),
    FGSM(0.1, random_start=True),
    PGD(0.1, steps=5, restarts=2),
    PGD(0.1, steps=3, stop_when_fooled=False),
    UniformNoise(0.1, draws=3),
    CarliniWagnerL2(binary_search_steps=2, steps=20),
    Boundary(steps=30, start_attempts=10),
    Pixels(1, population=20, generations=3, block=10, base="random"),
    Pixels(1, population=20, generations=3, base="best"),
    Pixels(3, population=20, generations=3, incremental=False),
    APGD(0.1, steps=6, restarts=2),
    Square(0.1, queries=20),
    WorstCase([FGSM(0.05), Square(0.1, queries=9), Boundary(9, start_attempts=5)], l2=0.8),
]
every_attack = pytest.mark.parametrize("attack", ATTACKS, ids=str)


@pytest.fixture
def problem():
    network, images, labels = digits()
    labels = labels[:40].clone()
    labels[[3, 11]] = (labels[[3, 11]] + 1) % 10  # two images the network is sure to get "wrong"
    return network, images[:40], labels


def same(left: Outcome, right: Outcome) -> bool:
    pairs = zip(left.tensors().values(), right.tensors().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@every_attack
def test_outcome_agrees_with_an_independent_forward(attack, problem):
    network, images, labels = problem
    outcome = attack(network, images, labels, width=16)
    clean, adversarial = network(images).argmax(1), network(outcome.images)
    assert torch.equal(outcome.clean_prediction, clean)
    assert torch.equal(outcome.was_right, clean == labels)
    assert torch.equal(outcome.prediction, adversarial.argmax(1))
    assert torch.equal(outcome.fooled, (clean == labels) & (adversarial.argmax(1) != labels))
    probabilities = adversarial.softmax(1)
    rows = torch.arange(len(labels))
    torch.testing.assert_close(
        outcome.probability_true, probabilities[rows, labels].double(), rtol=1e-4, atol=1e-6
    )
    torch.testing.assert_close(
        outcome.probability_predicted, probabilities.amax(1).double(), rtol=1e-4, atol=1e-6
    )


@every_attack
def test_images_keep_range_budget_and_precision(attack, problem):
    network, images, labels = problem
    outcome = attack(network, images, labels, width=16)
    difference = (outcome.images - images).double().flatten(1)
    assert outcome.images.dtype == images.dtype
    assert outcome.images.min() >= 0
    assert outcome.images.max() <= 1
    torch.testing.assert_close(outcome.linf, difference.abs().amax(1), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(outcome.l2, difference.norm(dim=1), rtol=1e-5, atol=1e-6)
    assert torch.equal(outcome.l0, (difference != 0).sum(1))  # one channel: values are pixels
    if attack.budget is not None:
        assert getattr(outcome, attack.budget.norm).max() <= attack.budget.eps + 1e-6


@every_attack
def test_an_image_already_wrong_is_not_attacked(attack, problem):
    network, images, labels = problem
    outcome = attack(network, images, labels, width=16)
    wrong = ~outcome.was_right
    assert wrong[[3, 11]].all()
    assert torch.equal(outcome.images[wrong], images[wrong])
    assert (outcome.queries[wrong] == 1).all()
    # A step from the clean image uses the gradient of the query that found the image wrong.
    assert (outcome.gradient_queries[wrong] <= attack.starts_from_clean_gradient).all()
    assert (outcome.queries[~wrong] > 1 - attack.starts_from_clean_gradient).all()
    assert not outcome.fooled[wrong].any()
    assert outcome.wrong[wrong].all()


@every_attack
def test_company_order_and_chunks_change_no_result(attack, problem):
    network, images, labels = problem
    whole = attack(network, images, labels, width=16, seed=5)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))
    reordered = attack(network, images[order], labels[order], width=16, seed=5)
    assert same(whole.rows(order), reordered)
    assert same(whole, attack(network, images, labels, width=16, seed=5, chunk_size=7))
    assert same(
        whole.rows(torch.arange(5)), attack(network, images[:5], labels[:5], width=16, seed=5)
    )


@every_attack
def test_the_network_is_left_as_it_was(attack, problem):
    network, images, labels = problem
    network.zero_grad(set_to_none=True)
    network[1].bias.requires_grad_(False)
    network.train()
    network[2].eval()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    try:
        attack(network, images, labels, width=16)
        assert [module.training for module in network] == [i != 2 for i in range(len(network))]
        assert network.training
        assert [name for name, p in network.named_parameters() if not p.requires_grad] == ["1.bias"]
        assert all(p.grad is None for p in network.parameters())
        for name, tensor in network.state_dict().items():
            assert torch.equal(tensor, before[name]), name
    finally:
        network.eval().requires_grad_(True)


@every_attack
def test_a_plain_callable_in_double_precision_will_do(attack):
    network, images, labels = linear_problem()
    weight, bias = network.weight.detach().double(), network.bias.detach().double()
    outcome = attack(lambda x: x.flatten(1) @ weight.T + bias, images.double(), labels)
    assert outcome.images.dtype == torch.float64
    assert outcome.was_right.all()


@every_attack
def test_interrupted_work_keeps_its_finished_chunks(attack, problem):
    network, images, labels = problem
    finished = []

    def interrupting(x):
        if len(finished) == 2:
            raise KeyboardInterrupt
        return network(x)

    with pytest.raises(KeyboardInterrupt):
        finished.extend(attack.chunks(interrupting, images, labels, width=16, chunk_size=10))
    kept = Outcome.concatenate(finished)
    assert same(kept, attack(network, images, labels, width=16).rows(torch.arange(20)))


@every_attack
def test_no_image_that_is_right_is_no_reason_to_fail(attack):
    network, images, labels = linear_problem()
    outcome = attack(network, images, 1 - labels)
    assert torch.equal(outcome.images, images)
    assert outcome.robust_accuracy == 0
    assert outcome.success_rate != outcome.success_rate  # NaN: nothing was attempted


IMAGES, LABELS = torch.rand(4, 1, 3, 3), torch.tensor([0, 1, 0, 1])
BAD_INPUT = {
    "above one": (IMAGES * 2 + 0.1, LABELS, ValueError, r"\[0, 1\].*got values from"),
    "below zero": (IMAGES - 1.1, LABELS, ValueError, r"\[0, 1\]"),
    "NaN": (IMAGES * torch.nan, LABELS, ValueError, r"\[0, 1\].*nan"),
    "8 bits": ((IMAGES * 255).byte(), LABELS, TypeError, "uint8"),
    "an image alone": (IMAGES[0], LABELS[:1], ValueError, r"\(N, C, H, W\).*\(1, 3, 3\)"),
    "no images": (IMAGES[:0], LABELS[:0], ValueError, "no image"),
    "too few labels": (IMAGES, LABELS[:3], ValueError, r"\(4,\).*\(3,\)"),
    "label too high": (IMAGES, LABELS + 1, ValueError, "2 classes, got 2"),
    "label below zero": (IMAGES, LABELS - 1, ValueError, "got -1"),
    "labels not whole": (IMAGES, LABELS.float(), TypeError, "float32"),
    "not tensors": (IMAGES.numpy(), LABELS, TypeError, "ndarray"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_images_are_refused(case):
    images, labels, error, message = BAD_INPUT[case]
    with pytest.raises(error, match=message):
        FGSM(0.1)(Linear(torch.randn(2, 9)), images, labels)


BAD_NETWORKS = {
    "one row too many": (lambda x: torch.zeros(len(x) + 1, 3), ValueError, r"logits of shape"),
    "no classes": (lambda x: x.flatten(1).sum(1), ValueError, r"logits of shape"),
    "one class": (lambda x: x.flatten(1).sum(1, keepdim=True), ValueError, "two classes"),
    "NaN": (lambda x: x.flatten(1) * torch.nan, ValueError, "NaN"),
    "not a tensor": (lambda x: [0.0, 1.0], TypeError, "list"),
    "no gradient": (lambda x: torch.eye(2)[:1].expand(len(x), 2), ValueError, "gradient"),
}


@pytest.mark.parametrize("case", BAD_NETWORKS)
def test_bad_networks_are_refused(case):
    network, error, message = BAD_NETWORKS[case]
    with pytest.raises(error, match=message):
        FGSM(0.1)(network, torch.rand(2, 1, 3, 3), torch.tensor([0, 1]))


BAD_SETTINGS = [
    (lambda: FGSM(0), "eps must be above 0"),
    (lambda: FGSM(-0.1), "eps must be above 0"),
    (lambda: FGSM(float("nan")), "eps must be above 0"),
    (lambda: UniformNoise(0.1, draws=0), "draws must be at least 1"),
    (lambda: PGD(0.1, steps=0), "steps must be at least 1"),
    (lambda: PGD(0.1, step_size=-1), "step_size must be above 0"),
    (lambda: PGD(0.1, restarts=2, random_start=False), "random_start"),
]


@pytest.mark.parametrize(("make", "message"), BAD_SETTINGS)
def test_bad_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("setting", ["chunk_size", "width"])
def test_bad_sizes_are_refused(setting):
    with pytest.raises(ValueError, match=f"{setting} must be at least 1, got 0"):
        FGSM(0.1)(Linear(torch.randn(2, 9)), IMAGES, LABELS, **{setting: 0})


def test_a_broken_promise_is_an_error_not_a_result():
    class Reckless(Attack):
        @property
        def budget(self):
            return FGSM(0.01).budget

        def perturb(self, victim, task):
            return (task.images + 0.2).clamp(0, 1)

    network, images, labels = linear_problem()
    with pytest.raises(RuntimeError, match=r"went 0\.2.* far.*0\.01"):
        Reckless()(network, images, labels)


def test_progress_joins_the_callers_bars():
    from rich.progress import Progress

    network, images, labels = linear_problem()
    bars = Progress(disable=True)
    FGSM(0.1)(network, images, labels, progress=bars, chunk_size=10)
    assert [(task.completed, task.total) for task in bars.tasks] == [(24, 24)]


def test_batch_norm_in_training_mode_is_not_moved_by_an_attack():
    network = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(9, 2)).train()
    FGSM(0.1)(network, IMAGES, LABELS)
    assert network.training
    assert torch.equal(network[0].running_mean, torch.zeros(1))
