"""Plans: what a scale means in epochs, images and steps."""

import json

import pytest

from splash_units.lab.plan import SHORT, SMOKE_IMAGES, plan
from splash_units.lab.spec import TrainSpec

CIFAR = (50_000, 10_000)
DIGITS = (1_438, 359)


def planned(size=CIFAR, **fields):
    return plan(TrainSpec(**fields), *size)


def test_the_paper_uses_everything():
    whole = planned(model="resnet20", scale="paper")
    assert (whole.epochs, whole.train_images, whole.test_images) == (200, 50_000, 10_000)
    assert whole.steps == 391
    assert whole.recipe.milestones == (81, 122)


@pytest.mark.parametrize("model", sorted(SHORT))
def test_short_is_the_stated_part_of_each_network(model):
    share, paper, short = SHORT[model], planned(model=model, scale="paper"), planned(model=model)
    assert short.epochs == round(paper.epochs * share.epochs) >= 3
    assert short.train_images == 50_000 * share.images
    assert short.test_images == max(2_000, 10_000 * share.images)
    assert short.paper_epochs == paper.epochs
    assert (short.all_train_images, short.all_test_images) == CIFAR


def test_the_schedule_moves_with_the_epochs():
    paper, short = (planned(model="resnet20", scale=scale) for scale in ("paper", "short"))
    ends = [p.recipe.learning_rate(p.steps - 1, p.epochs - 1, p.steps) for p in (paper, short)]
    assert ends == pytest.approx([0.001, 0.001])
    assert short.recipe.milestones == pytest.approx((4.05, 6.1))


def test_a_small_data_set_is_not_cut():
    short = planned(DIGITS, model="resnet20")
    assert (short.train_images, short.test_images) == DIGITS


def test_a_network_of_ones_own_has_a_short_scale_too():
    short = planned(model="mine")
    assert (short.epochs, short.train_images) == (5, 10_000)


def test_smoke_takes_seconds():
    smoke = planned(model="allcnn", scale="smoke")
    assert (smoke.epochs, smoke.train_images, smoke.test_images) == (2, SMOKE_IMAGES, SMOKE_IMAGES)


def test_what_the_spec_says_goes_before_scale_and_recipe():
    mine = planned(epochs=7, fraction=0.5, batch_size=100, lr=0.3, weight_decay=0.0)
    assert (mine.epochs, mine.train_images, mine.steps) == (7, 25_000, 250)
    assert (mine.recipe.epochs, mine.recipe.lr, mine.recipe.weight_decay) == (7, 0.3, 0.0)
    assert mine.recipe.batch_size == 100


def test_a_last_batch_of_one_image_is_left_out():
    assert planned((257, 10), scale="paper").train_images == 256
    assert planned((257, 10), scale="paper").steps == 2
    assert planned((258, 10), scale="paper").steps == 3


def test_too_few_images_are_refused():
    with pytest.raises(ValueError, match=r"1 image.* larger fraction"):
        planned(DIGITS, fraction=1e-6)


def test_a_plan_reads_back_from_json_as_it_was():
    fields = planned(model="nin").as_dict()
    assert json.loads(json.dumps(fields)) == fields
    assert fields["recipe"]["milestones"] == list(planned(model="nin").recipe.milestones)
