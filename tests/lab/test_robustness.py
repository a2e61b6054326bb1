"""The account of an attack: what is drawn, counted, kept, checked, compared."""

import json
import math
from collections import Counter
from dataclasses import replace

import pytest
import scipy.stats
import tiny_lab
import torch
from attack_models import digits
from torch import Tensor, nn

from splash_units.lab import budgets, robustness
from splash_units.lab.attacks import APGD, AutoAttack, Pixels
from splash_units.lab.attacks.victim import WIDTH
from splash_units.lab.findings import Finding, attacks_on, finding, hold
from splash_units.lab.robustness import checks, running
from splash_units.lab.robustness.accounting import account, common_gap, success_at_l2
from splash_units.lab.robustness.named import ATTACKS, describe_attack, make_attack
from splash_units.lab.robustness.own import Own, attack_own
from splash_units.lab.robustness.targets import Target, draw
from splash_units.lab.robustness.transferring import _hidden_gradients, _labels
from splash_units.lab.runner import complete
from splash_units.lab.spec import AttackSpec, TrainSpec, TransferSpec
from splash_units.lab.store import Store

CPU = torch.device("cpu")


class Threshold(nn.Module):
    """Class 0 where the first pixel is above one half, by a margin of twice what it is above."""

    def __init__(self, sharpness: float = 1.0) -> None:
        super().__init__()
        self.sharpness = nn.Parameter(torch.tensor(sharpness))

    def forward(self, images: Tensor) -> Tensor:
        above = self.sharpness * (images.flatten(1)[:, 0] - 0.5)
        return torch.stack([above, -above], 1)


def owned(network, images, labels, name="test"):
    return Own(name, network, images, labels, 2, "a" * 64, "b" * 64)


def bright(*values: float) -> Tensor:
    """Images of two pixels, the first of which decides."""
    return torch.tensor([[[[value, 0.5]]] for value in values])


# Six that are right (of class 0 above, 1 below one half), two that are wrong.
IMAGES = bright(0.53, 0.55, 0.62, 0.90, 0.48, 0.10, 0.70, 0.30)
LABELS = torch.tensor([0, 0, 0, 0, 1, 1, 1, 0])


def fgsm(tmp_path, **options):
    settings = {"attack": "fgsm", "options": {"eps": 0.1}, "check": False, **options}
    return attack_own(owned(Threshold(), IMAGES, LABELS), tmp_path, **settings)


def test_counts_of_a_network_whose_every_answer_is_known(tmp_path):
    """FGSM moves the first pixel by 0.1, so that it fools 0.53, 0.55 and 0.48, and no other."""
    result = fgsm(tmp_path, choose="all").result()
    assert (result["images"], result["attempts"], result["fooled"]) == (8, 6, 3)
    assert result["wrong_after"] == 5
    assert result["clean_accuracy"] == 6 / 8
    assert result["robust_accuracy"] == pytest.approx(3 / 8)
    interval = scipy.stats.binomtest(3, 6).proportion_ci(0.95, "wilson")
    assert result["fooled_interval"] == pytest.approx([interval.low, interval.high], abs=1e-9)
    assert result["median_linf"] == pytest.approx(0.1)
    assert result["median_l2"] == pytest.approx(0.1)  # the second pixel has no gradient
    assert result["median_l0"] == 1
    assert result["success_at_l2"] is None
    assert result["fooled_after_rounding"] == 3
    # Softmax of (z, -z) at 0.43, 0.45 and 0.58: the gap is tanh |x - 1/2|.
    gaps = [math.tanh(0.07), math.tanh(0.05), math.tanh(0.08)]
    assert result["own_gap"] == pytest.approx(sum(gaps) / 3, abs=1e-6)
    assert (result["queries"], result["gradient_queries"]) == (1, 1)
    assert (result["asked"], result["available"]) == (8, 8)


def test_only_what_is_right_is_drawn_unless_all_are_wanted(tmp_path):
    result = fgsm(tmp_path).result()
    assert (result["images"], result["attempts"], result["fooled"]) == (6, 6, 3)
    assert (result["wrong_after"], result["clean_accuracy"]) == (3, 1)
    assert result["robust_accuracy"] == 0.5


def test_rows_are_kept_with_the_images_before_and_their_place(tmp_path):
    rows = fgsm(tmp_path, choose="all").tensors()
    assert sorted(rows["index"].tolist()) == list(range(8))
    assert torch.equal(rows["clean"], IMAGES[rows["index"]])
    assert torch.equal(rows["labels"], LABELS[rows["index"]])
    moved = (rows["images"] - rows["clean"]).abs().amax((1, 2, 3))
    torch.testing.assert_close(moved.double(), rows["linf"])
    assert rows["index"][rows["fooled"]].sort().values.tolist() == [0, 1, 4]


def test_an_image_already_wrong_is_never_sent_to_an_attack(tmp_path):
    """The network itself tells: it sees such an image as it was, and no other near it."""
    seen: Counter[float] = Counter()
    network = Threshold()

    def watching(images: Tensor) -> Tensor:
        seen.update(round(float(value), 3) for value in images[:, 0, 0, 0].detach())
        return network(images)

    found = attack_own(
        owned(watching, IMAGES, LABELS),
        tmp_path,
        attack="pgd",
        options={"eps": 0.1, "steps": 4, "random_start": False},
        choose="all",
        check=False,
    )
    rows = found.tensors("was_right", "queries", "gradient_queries", "index")
    assert rows["index"][~rows["was_right"]].sort().values.tolist() == [6, 7]
    assert rows["queries"][~rows["was_right"]].tolist() == [1, 1]
    assert rows["gradient_queries"][~rows["was_right"]].tolist() == [0, 0]
    near = [value for value in seen if 0.25 < value < 0.35 or 0.65 < value < 0.75]
    assert sorted(near) == [0.3, 0.7]


def rows_of(**columns):
    count = len(columns["fooled"])
    rows = {name: torch.tensor(values) for name, values in columns.items()}
    zeros = torch.zeros(count)
    names = ("l2", "linf", "l0", "probability_true", "probability_predicted", "queries")
    defaults = {
        **dict.fromkeys((*names, "gradient_queries"), zeros),
        "prediction": zeros.long(),
        "labels": zeros.long(),
        "was_right": torch.ones(count, dtype=torch.bool),
        "fooled_rounded": torch.zeros(count, dtype=torch.bool),
    }
    return {**defaults, **rows}


def test_distances_of_an_attack_that_minimises_them():
    rows = rows_of(fooled=[True, True, True, False], l2=[0.2, 0.5, 3.0, 0.0])
    assert success_at_l2(rows) == {"0.25": 0.25, "0.5": 0.5, "1.0": 0.5, "none": 0.75}
    assert account(rows, minimises=True)["median_l2"] == 0.5  # of 0.2, 0.5, 3 and infinity
    assert account(rows, minimises=False)["median_l2"] == 0.5  # of 0.2, 0.5 and 3
    most_failed = rows_of(fooled=[True, False, False, False], l2=[0.2, 0.0, 0.0, 0.0])
    assert account(most_failed, minimises=True)["median_l2"] is None
    assert account(most_failed, minimises=False)["median_l2"] == pytest.approx(0.2)


def test_nothing_right_is_nothing_attempted():
    rows = rows_of(fooled=[False, False], was_right=[False, False], prediction=[1, 1])
    result = account(rows, minimises=True)
    assert (result["attempts"], result["fooled"], result["wrong_after"]) == (0, 0, 2)
    assert result["fooled_interval"] == [0, 1]
    assert result["own_gap"] is result["median_l2"] is result["queries"] is None
    assert set(result["success_at_l2"].values()) == {None}


def kept(folder, **columns):
    """A finding with hand-made rows."""
    found = Finding(folder)
    with hold(found, AttackSpec(train=TrainSpec(), attack="cw")) as draft:
        draft.begin({})
        draft.finish({}, {name: torch.tensor(values) for name, values in columns.items()})
    return found


def test_the_papers_gap_is_over_images_that_fool_all(tmp_path):
    first = kept(
        tmp_path / "first",
        index=[4, 2, 9],
        fooled=[True, True, False],
        probability_true=[0.3, 0.1, 0.9],
        probability_predicted=[0.5, 0.7, 0.9],
    )
    second = kept(
        tmp_path / "second",
        index=[9, 4, 7],
        fooled=[True, True, True],
        probability_true=[0.0, 0.25, 0.0],
        probability_predicted=[1.0, 0.75, 1.0],
    )
    assert common_gap([first, second]) == pytest.approx([0.2, 0.5])  # image 4 alone
    assert common_gap([first]) == pytest.approx([0.4])
    third = kept(
        tmp_path / "third",
        index=[1],
        fooled=[True],
        probability_true=[0.0],
        probability_predicted=[1.0],
    )
    assert common_gap([first, second, third]) == [None, None, None]
    assert common_gap([]) == []


def test_draws_depend_on_the_seed_and_common_images_come_first():
    generous = Target(Threshold(), IMAGES, LABELS, CPU)
    opposite = Target(lambda x: -Threshold()(x), IMAGES, LABELS, CPU)
    right = draw(generous, 100, "right", 0)
    assert sorted(right.tolist()) == [0, 1, 2, 3, 4, 5]
    assert sorted(draw(opposite, 100, "right", 0).tolist()) == [6, 7]
    order = draw(generous, 100, "all", 0)
    assert right.tolist() == [i for i in order.tolist() if i < 6]
    assert draw(generous, 3, "right", 0).tolist() == right[:3].tolist()
    assert draw(generous, 3, "all", 0).tolist() == order[:3].tolist()
    assert any(draw(generous, 9, "all", s).tolist() != order.tolist() for s in (1, 2, 3))


def test_an_empty_selection_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="no image to attack: the network gets none of 8"):
        attack_own(
            owned(Threshold(), IMAGES, torch.tensor([1, 1, 1, 1, 0, 0, 1, 0])),
            tmp_path,
            attack="fgsm",
            options={"eps": 0.1},
        )


class Stops(nn.Module):
    """A network that is interrupted at one of its calls, and counts them all."""

    def __init__(self, at: int | None = None) -> None:
        super().__init__()
        self.inner, self.at, self.calls = Threshold(), at, 0

    def forward(self, images: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == self.at:
            raise KeyboardInterrupt
        return self.inner(images)


MANY = bright(*torch.linspace(0.4, 0.6, 40).tolist())
MANY_LABELS = (MANY[:, 0, 0, 0] < 0.5).long()
PGD = {"attack": "pgd", "options": {"eps": 0.05, "steps": 3}, "check": False}


def same_rows(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in left)


def test_an_interrupted_attack_goes_on_after_its_last_chunk(tmp_path):
    steady, stopped = Stops(), Stops(at=14)
    whole = attack_own(owned(steady, MANY, MANY_LABELS), tmp_path / "a", **PGD, chunk_size=10)
    with pytest.raises(KeyboardInterrupt):
        attack_own(owned(stopped, MANY, MANY_LABELS), tmp_path / "b", **PGD, chunk_size=10)
    (part,) = (tmp_path / "b").glob("*.part")
    chunks = sorted(path.name for path in part.glob("part-0*"))
    assert chunks == [
        "part-0000000-0000010.safetensors",
        "part-0000010-0000020.safetensors",
    ]
    again = Stops()
    went_on = attack_own(owned(again, MANY, MANY_LABELS), tmp_path / "b", **PGD, chunk_size=10)
    assert same_rows(went_on.tensors(), whole.tensors())
    assert 0 < again.calls < steady.calls
    left_out = {"seconds", "ended"}
    numbers = [{k: v for k, v in f.result().items() if k not in left_out} for f in (whole, went_on)]
    assert numbers[0] == numbers[1]


def test_a_damaged_chunk_is_done_again_with_all_after_it(tmp_path):
    whole = attack_own(owned(Stops(), MANY, MANY_LABELS), tmp_path / "a", **PGD)
    with pytest.raises(KeyboardInterrupt):
        attack_own(owned(Stops(at=14), MANY, MANY_LABELS), tmp_path / "b", **PGD, chunk_size=10)
    (first,) = (tmp_path / "b").glob("*.part/part-0000000-*")
    first.write_bytes(b"nothing")
    found = attack_own(owned(Stops(), MANY, MANY_LABELS), tmp_path / "b", **PGD, chunk_size=16)
    assert same_rows(found.tensors(), whole.tensors())


def test_what_is_done_is_not_done_again_unless_asked(tmp_path):
    network = Stops()
    first = attack_own(owned(network, MANY, MANY_LABELS), tmp_path, **PGD)
    calls = network.calls
    assert attack_own(owned(network, MANY, MANY_LABELS), tmp_path, **PGD) == first
    assert network.calls == calls
    attack_own(owned(network, MANY, MANY_LABELS), tmp_path, **PGD, again=True)
    assert network.calls == 2 * calls


def test_another_network_images_or_seed_is_another_result(tmp_path):
    own = owned(Threshold(), IMAGES, LABELS)
    others = [own, replace(own, network_sha256="c" * 64), replace(own, images_sha256="c" * 64)]
    folders = {attack_own(one, tmp_path, **PGD).folder for one in others}
    folders.add(attack_own(own, tmp_path, **PGD, seed=1).folder)
    assert len(folders) == 4


def test_a_failure_is_written_down(tmp_path):
    def broken(images: Tensor) -> Tensor:
        raise RuntimeError("out of order")

    with pytest.raises(RuntimeError, match="out of order"):
        attack_own(owned(broken, IMAGES, LABELS), tmp_path, **PGD)
    (part,) = tmp_path.glob("*.part")
    assert json.loads((part / "failure.json").read_text())["why"] == "RuntimeError: out of order"


def test_a_network_in_training_mode_is_attacked_in_eval_mode_and_left_as_it_was(tmp_path):
    network = nn.Sequential(nn.Dropout(0.99), Threshold()).train()
    found = attack_own(owned(network, IMAGES, LABELS), tmp_path, **PGD)
    assert found.result()["attempts"] == 6  # with dropout, hardly one would be right
    assert network.training
    assert network[0].training


def test_chunks_are_as_large_as_a_minute_allows():
    pgd = make_attack("pgd", {"eps": 0.1})
    assert running._size(pgd, 128, None) == 128
    assert running._size(pgd, 128, 0.2) == 300
    assert running._size(pgd, 128, 10.0) == 128  # a full block in any case
    assert running._size(pgd, 128, 1e-6) == running.LARGEST  # which bounds the memory
    assert running._size(Pixels(1), 128, None) == 8
    assert running._size(Pixels(1), 128, 10.0) == 8
    assert {running._size(AutoAttack(0.1), 128, s) for s in (None, 1.0, 9.0)} == {running.LARGEST}


def test_the_network_is_never_shown_more_than_a_block(tmp_path):
    sizes = []

    def watching(images: Tensor) -> Tensor:
        sizes.append(len(images))
        return Threshold()(images)

    images, labels = MANY.repeat(20, 1, 1, 1), MANY_LABELS.repeat(20)
    found = attack_own(owned(watching, images, labels), tmp_path, **PGD)
    assert found.result()["images"] == 800
    assert set(sizes) == {WIDTH}


# --- names and options


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fgms", {}, "unknown attack 'fgms'; did you mean fgsm"),
        ("fgsm", {}, "fgsm needs eps"),
        ("fgsm", {"eps": 0}, "eps must be above 0"),
        ("fgsm", {"eps": -0.1}, "eps must be above 0"),
        ("fgsm", {"eps": "much"}, "eps must be a number"),
        ("fgsm", {"eps": 0.1, "random_strat": True}, "unknown option of fgsm.*random_start"),
        ("fgsm", {"eps": 0.1, "random_start": 1}, "random_start must be true or false, got 1"),
        ("pgd", {"eps": 0.1, "steps": 0}, "steps must be at least 1"),
        ("pgd", {"eps": 0.1, "steps": 1.5}, "steps must be a whole number"),
        ("pixels", {"k": 0}, "k must be at least 1"),
        ("apgd", {"eps": 0.1, "loss": "mse"}, "loss must be one of"),
        ("worst_case", {"eps": 0.1, "losses": ["mse"]}, "loss must be one of"),
        ("autoattack", {"eps": 0.1, "attacks": ["fgsm"]}, "attacks must be among"),
    ],
)
def test_an_attack_that_cannot_be_is_named(name, options, message):
    with pytest.raises(ValueError, match=message):
        robustness.check_attack(name, options)


def test_more_pixels_than_there_are(tmp_path):
    with pytest.raises(ValueError, match="k=5 pixels are more than an image of 1 x 2 has"):
        attack_own(owned(Threshold(), IMAGES, LABELS), tmp_path, attack="pixels", options={"k": 5})


def test_the_worst_case_has_the_losses_that_were_asked_for():
    attacks = make_attack("worst_case", {"eps": 0.1, "losses": ["cross-entropy"]}).attacks
    assert [attack.loss for attack in attacks if isinstance(attack, APGD)] == ["cross-entropy"]
    assert len(make_attack("worst_case", {"eps": 0.1}).attacks) == 4


def test_an_attack_in_words():
    options = {"random_start": True, "eps": 0.02, "steps": 5, "incremental": False}
    assert describe_attack("x", options) == "x eps=0.02 no incremental random_start steps=5"
    assert describe_attack("y", {"losses": ["a", "b"], "k": 3}) == "y k=3 losses=a,b"


@pytest.mark.parametrize("scale", ["smoke", "short", "paper"])
def test_every_budget_makes_an_attack(scale):
    for name in ATTACKS:
        options, images = budgets.budget(name, scale)
        robustness.check_attack(name, options)
        assert images >= 16
    for name, options, _ in budgets.battery(scale):
        robustness.check_attack(name, options)
    robustness.check_attack("pgd", budgets.transfer_budget(scale)[0])


def test_the_papers_budgets():
    """Pixels: 400 candidates, 40 generations; CW 7 x 1000; boundary 6000; FGSM from noise."""
    found = [(name, options) for name, options, _ in budgets.battery("paper")]
    for k in (1, 3, 5):
        assert ("pixels", {"k": k, "population": 400, "generations": 40, "base": "random"}) in found
    for eps in (0.02, 0.04, 0.06):
        assert ("fgsm", {"eps": eps, "random_start": True}) in found
    assert ("cw", {"binary_search_steps": 7, "steps": 1000}) in found
    assert ("boundary", {"steps": 6000}) in found
    assert {images for _, _, images in budgets.battery("paper")} == {1000}


def test_an_unknown_budget_is_named():
    with pytest.raises(ValueError, match="unknown attack 'fgs'"):
        budgets.budget("fgs", "paper")
    with pytest.raises(ValueError, match="unknown scale 'papr'"):
        budgets.budget("fgsm", "papr")


# --- sanity checks


def checked(tmp_path, network, attack, options, images=30):
    _, pictures, labels = digits()
    own = owned(network, pictures[:images], labels[:images], name=str(id(network)))
    found = attack_own(own, tmp_path, attack=attack, options=options)
    result = found.result()
    return {check["name"]: check["passed"] for check in result["checks"]}, result


def test_an_honest_network_passes(tmp_path):
    network, _, _ = digits()
    found, result = checked(tmp_path, network, "pgd", {"eps": 0.08, "steps": 20})
    assert found == {
        "single step <= iterative": True,
        "black box <= white box": True,
        "success grows with eps and reaches 100 %": True,
        "doubled effort changes little": True,
        "gradients are there": True,
        "noise alone does little": True,
    }
    assert result["checked"]
    assert result["warnings"] == []


def test_a_network_that_hides_its_gradients_is_found_out(tmp_path):
    """Logits so large that the softmax rounds to one: no gradient, though the classes are the
    same.
    """
    honest, _, _ = digits()
    hiding = lambda images: 1e4 * honest(images)  # noqa: E731
    found, result = checked(tmp_path, hiding, "pgd", {"eps": 0.08, "steps": 20})
    assert not found["gradients are there"]
    assert not found["success grows with eps and reaches 100 %"]
    assert not found["black box <= white box"]
    assert len(result["warnings"]) == sum(passed is False for passed in found.values())
    assert any(
        warning.startswith("gradients are there: 30 of 30") for warning in result["warnings"]
    ) == (result["attempts"] == 30)


def test_an_attack_cut_short_is_found_out(tmp_path):
    """Two steps of 0.02 reach the images within 0.04 of the threshold, four those within 0.08."""
    own = owned(Threshold(), MANY, MANY_LABELS)
    short = {"eps": 0.1, "steps": 2, "step_size": 0.02, "random_start": False}
    result = attack_own(own, tmp_path, attack="pgd", options=short).result()
    told = dict(warning.split(": ", 1) for warning in result["warnings"])
    numbers = "twice the effort fools 32, this 16 of 40 images"
    assert told["doubled effort changes little"] == numbers
    assert "single step <= iterative" in told  # which is better than a step of a fifth
    options = {"binary_search_steps": 1, "steps": 5}
    result = attack_own(own, tmp_path, attack="cw", options=options).result()
    assert [warning.partition(":")[0] for warning in result["warnings"]] == [
        "reaches 100 % without a limit",
        "black box <= white box",
    ]


def test_noise_that_does_it_all_is_found_out(tmp_path):
    """Two pixels that differ a little are right; whatever changes one of them makes them wrong."""

    def fragile(images: Tensor) -> Tensor:
        apart = (images[:, 0, 0, 0] - images[:, 0, 0, 1]).abs() - 0.01
        return torch.stack([-apart, apart], 1)

    images = (
        torch.tensor([[[[0.505, 0.5]]]]).repeat(20, 1, 1, 1)
        + torch.arange(20)[:, None, None, None] * 0.01
    )
    own = owned(fragile, images, torch.zeros(20, dtype=torch.int64))
    result = attack_own(own, tmp_path, attack="fgsm", options={"eps": 0.2}).result()
    assert result["fooled"] == 20
    (warning,) = [text for text in result["warnings"] if "noise" in text]
    assert warning.startswith("noise alone does little: it fools ")


@pytest.mark.parametrize(
    ("attack", "options", "expected"),
    [
        ("boundary", {"steps": 20, "start_attempts": 50}, "black box <= white box"),
        ("pixels", {"k": 1, "population": 6, "generations": 2}, "success grows with k"),
        ("apgd", {"eps": 0.05, "steps": 3}, "doubled effort changes little"),
        ("square", {"eps": 0.05, "queries": 5}, "single step <= iterative"),
        ("noise", {"eps": 0.05}, "noise alone does little"),
    ],
)
def test_every_kind_of_attack_has_its_checks(tmp_path, attack, options, expected):
    own = owned(Threshold(), MANY, MANY_LABELS)
    result = attack_own(own, tmp_path, attack=attack, options=options).result()
    names = [check["name"] for check in result["checks"]]
    assert expected in names
    assert len(names) >= 4


def test_what_only_square_fools_is_told_of_the_worst_case(tmp_path):
    honest, _, _ = digits()
    options = {"eps": 0.15, "steps": 2, "queries": 100}
    found, _ = checked(tmp_path, honest, "worst_case", options, images=20)
    assert found["black box <= white box"]
    hiding = lambda images: 1e4 * honest(images)  # noqa: E731
    options = {**options, "losses": ["cross-entropy"]}
    found, _ = checked(tmp_path, hiding, "worst_case", options, images=20)
    assert not found["black box <= white box"]


def test_the_effort_that_is_doubled():
    assert checks.doubled("pgd", {"eps": 0.1, "steps": 7}) == {"eps": 0.1, "steps": 14}
    assert checks.doubled("cw", {}) == {"steps": 2000}
    assert checks.doubled("worst_case", {"eps": 1, "steps": 3})["queries"] == 10_000


def test_probes_are_found_again_by_the_next_attack(tmp_path):
    network = Stops()
    own = owned(network, MANY, MANY_LABELS)
    attack_own(own, tmp_path, attack="fgsm", options={"eps": 0.05})
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / ".probes").iterdir()}
    calls = network.calls
    attack_own(own, tmp_path, attack="fgsm", options={"eps": 0.05, "random_start": True})
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / ".probes").iterdir()} == files
    assert network.calls - calls < calls / 2


def test_checks_can_be_had_later(tmp_path):
    own = owned(Threshold(), MANY, MANY_LABELS)
    bare = attack_own(own, tmp_path, **PGD)
    before = bare.result()
    assert (before["checked"], before["checks"]) == (False, [])
    settings = {**PGD, "check": True}
    after = attack_own(own, tmp_path, **settings).result()
    assert after["checked"]
    assert len(after["checks"]) == 6
    added = {"checks", "checked", "warnings"}
    assert {k: v for k, v in after.items() if k not in added} == {
        k: v for k, v in before.items() if k not in added
    }
    assert attack_own(own, tmp_path, **PGD).result() == after  # and they stay


# --- runs of a store


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    tiny_lab.models.register("tiny", tiny_lab.tiny, replace=True)
    tiny_lab.data.register("blobs", tiny_lab.blobs, replace=True)
    store = Store(tmp_path_factory.mktemp("runs"))
    tiny = {"model": "tiny", "data": "blobs", "scale": "smoke", "batch_size": 32}
    specs = [TrainSpec(**tiny, unit=unit) for unit in ("splash", "relu")]
    for spec in specs:
        complete(spec, store, threads=1)
    return store, specs


@pytest.fixture(autouse=True)
def _tiny_is_known():
    tiny_lab.models.register("tiny", tiny_lab.tiny, replace=True)
    tiny_lab.data.register("blobs", tiny_lab.blobs, replace=True)


def test_an_attack_joins_its_run(trained):
    store, (train, _) = trained
    spec = AttackSpec(train=train, attack="fgsm", options={"eps": 0.3}, images=40)
    found = robustness.attack(spec, store, threads=1)
    assert found == finding(store, spec)
    assert found in attacks_on(store.run(train))
    result = found.result()
    assert (result["scale"], result["asked"], result["images"]) == ("smoke", 40, 40)
    assert result["available"] == 160
    assert 0 < result["fooled"] <= result["attempts"] == 40
    model = store.run(train).result()["model_sha256"]
    assert found.record()["model_sha256"] == model
    assert found.record()["threads"] == 1
    stamp = (found.folder / "result.json").stat().st_mtime_ns
    assert robustness.attack(spec, store) == found
    assert (found.folder / "result.json").stat().st_mtime_ns == stamp


def test_fewer_right_than_asked_for_are_all_taken(trained):
    store, (train, _) = trained
    spec = AttackSpec(train=train, attack="noise", options={"eps": 0.1}, images=1000)
    result = robustness.attack(spec, store, check=False).result()
    error = store.run(train).result()["test_error"]
    assert result["images"] == pytest.approx((1 - error) * 160, abs=1)


def test_no_run_and_no_network(trained, tmp_path):
    _, (train, _) = trained
    spec = AttackSpec(train=train, attack="fgsm", options={"eps": 0.1})
    with pytest.raises(ValueError, match="no trained network"):
        robustness.attack(spec, Store(tmp_path))
    store = Store(tmp_path)
    with store.claim(train) as work:
        work.begin({}, resumed=False)
        work.finish({"status": "diverged", "why": "in epoch 3"}, {})
    with pytest.raises(ValueError, match="has no trained network: it diverged in epoch 3"):
        robustness.attack(spec, store)


def test_a_bad_attack_is_refused_before_anything_is_made(trained, tmp_path):
    _, (train, _) = trained
    with pytest.raises(ValueError, match="unknown attack 'fgms'"):
        robustness.attack(AttackSpec(train=train, attack="fgms"), Store(tmp_path / "none"))
    assert not (tmp_path / "none").exists()


def test_a_transfer_shows_every_networks_images_to_all(trained):
    store, specs = trained
    options = {"eps": 0.3, "steps": 3, "stop_when_fooled": False}
    spec = TransferSpec(trains=tuple(specs), attack="pgd", options=options, images=30)
    found = robustness.transfer(spec, store, threads=1)
    result = found.result()
    assert result["labels"] == ["splash", "relu"]
    assert result["images"] == 30
    for i, train in enumerate(specs):
        alone = AttackSpec(train=train, attack="pgd", options=options, images=160)
        rows = robustness.attack(alone, store, threads=1, check=False).tensors("index", "fooled")
        mine = torch.isin(rows["index"], found.tensors("index")["index"])
        assert int(mine.sum()) == 30  # all networks get them right
        assert result["fooled"][i][i] == int(rows["fooled"][mine].sum())
        assert 0 <= result["fooled"][i][1 - i] <= 30
    assert robustness.transfer(spec, store) == found


def test_a_transfer_between_data_sets_is_refused(trained, tmp_path):
    _, (train, _) = trained
    spec = TransferSpec(trains=(train, TrainSpec(data="digits")), options={"eps": 0.1})
    with pytest.raises(ValueError, match="networks of one data set, got blobs, digits"):
        robustness.transfer(spec, Store(tmp_path))


def test_networks_are_told_apart_and_hidden_gradients_named():
    trains = [TrainSpec(unit="relu", seed=seed) for seed in (0, 1)]
    assert _labels(trains) == ["relu lenet5 seed 0", "relu lenet5 seed 1"]
    fooled = torch.tensor([[9, 7], [3, 5]])  # the second falls to the first's more than to its own
    (warning,) = _hidden_gradients(fooled, ["a", "b"])
    assert warning == "b falls to 7 images made on a, to 5 made on itself: its gradients mislead"
