"""Specs: what they refuse, what they hash to, what they say."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, ValidationError

from splash_units.lab.spec import (
    TrainSpec,
    canonical_json,
    describe,
    digest,
    stream_seed,
    train_spec,
    unknown,
)


def test_the_canonical_text_has_only_what_departs_from_the_defaults():
    assert canonical_json(TrainSpec()) == '{"kind":"train","version":2}'
    text = canonical_json(TrainSpec(unit="relu", seed=3, unit_options={"b": 2.0, "a": [1.5]}))
    assert text == (
        '{"kind":"train","seed":3,"unit":"relu","unit_options":{"a":[1.5],"b":2},"version":2}'
    )


def test_the_hash_is_known_so_that_a_store_outlives_a_release():
    # Computed with: printf '{"kind":"train","version":2}' | sha256sum
    known = "6bc96c71aa9c5566"
    assert digest(TrainSpec()).startswith(known)


def test_equal_settings_have_equal_hashes_however_they_are_written():
    one = TrainSpec(lr=1, unit_options={"beta": 1.0, "share": "layer"})
    two = train_spec({"unit_options": {"share": "layer", "beta": 1}, "lr": "1.0"})
    assert one == two
    assert digest(one) == digest(two)
    assert len({one, two}) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"model": "mlp"},
        {"model_options": {"dropout": 0.5}},
        {"data": "mnist"},
        {"unit": "relu"},
        {"unit_options": {"num_hinges": 9}},
        {"seed": 1},
        {"scale": "paper"},
        {"augment": "moderate"},
        {"recipe": "rescaled"},
        {"epochs": 3},
        {"fraction": 0.5},
        {"batch_size": 64},
        {"optimizer": "adam"},
        {"lr": 0.1},
        {"slope_lr": 0.1},
        {"weight_decay": 0.0},
        {"precision": "bfloat16"},
        {"compile": True},
        {"source": TrainSpec()},
        {"take": "weights", "source": TrainSpec()},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_field_changes_the_hash(change):
    _, *others = change  # what the field cannot do without
    without = TrainSpec(**{name: change[name] for name in others})
    assert digest(TrainSpec(**change)) != digest(without)
    assert digest(TrainSpec.model_validate(TrainSpec(**change).model_dump(mode="json"))) == digest(
        TrainSpec(**change)
    )


def test_the_list_above_names_every_field():
    tested = test_every_field_changes_the_hash.pytestmark[0].args[1]
    assert {next(iter(change)) for change in tested} == set(TrainSpec.model_fields) - {"kind"}


def test_any_kind_of_spec_can_be_hashed():
    class OtherSpec(BaseModel):
        model_config = ConfigDict(frozen=True)
        kind: str = "other"
        steps: int = 3

    assert canonical_json(OtherSpec()) == '{"kind":"other","version":2}'
    assert digest(OtherSpec()) != digest(TrainSpec())


def test_a_spec_is_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        TrainSpec().seed = 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"seed": -1}, "seed = -1: must be greater than or equal to 0"),
        ({"seed": 1.5}, "seed = 1.5: must be a valid integer"),
        ({"seed": 2**63}, "seed = .*: must be less than"),
        ({"scale": "big"}, "scale = 'big': must be 'smoke', 'short' or 'paper'"),
        ({"epochs": 0}, "epochs = 0: must be greater than or equal to 1"),
        ({"fraction": 0.0}, "fraction = 0.0: must be greater than 0"),
        ({"fraction": 1.1}, "fraction = 1.1: must be less than or equal to 1"),
        ({"batch_size": 1}, "batch_size = 1: must be greater than or equal to 2"),
        ({"lr": 0}, "lr = 0: must be greater than 0"),
        ({"lr": math.nan}, "lr = nan: must be a finite number"),
        ({"slope_lr": 0}, "slope_lr = 0: must be greater than 0"),
        ({"weight_decay": math.inf}, "weight_decay = inf: must be a finite number"),
        ({"precision": "float16"}, "precision = 'float16': must be 'float32' or 'bfloat16'"),
        ({"unit_options": {"f": math.sin}}, "unit_options: .* only JSON values can be options"),
        ({"unit_options": {"a": math.nan}}, "unit_options: nan is not a finite number"),
        ({"model": ""}, "model = '': "),
        ({"sed": 1}, "unknown setting 'sed'; did you mean seed"),
        ({"zzz": 1}, "unknown setting 'zzz'; there is .*augment.*weight_decay"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(values, message):
    with pytest.raises(ValueError, match=message):
        train_spec(values)


def test_all_that_is_wrong_is_told_at_once():
    with pytest.raises(ValueError) as wrong:
        train_spec({"seed": -1, "epochs": 0})
    assert len(str(wrong.value).splitlines()) == 2


@given(st.integers(0, 2**63 - 1), st.integers(0, 300))
def test_streams_are_a_pure_function_and_fit_a_generator(seed, epoch):
    value = stream_seed(seed, "order", epoch)
    assert value == stream_seed(seed, "order", epoch)
    assert 0 <= value < 2**63


def test_streams_of_unlike_purposes_differ():
    purposes = [("order", 0), ("order", 1), ("augmentation", 0), ("dropout", 0, 1), ("start",)]
    values = {stream_seed(seed, *purpose) for seed in range(10) for purpose in purposes}
    assert len(values) == 50


def test_unknown_names_get_the_nearest():
    assert unknown("unit", "Spalsh", ["relu", "splash"]) == (
        "unknown unit 'Spalsh'; did you mean splash?"
    )
    assert unknown("unit", "qqq", ["relu", "splash"]) == "unknown unit 'qqq'; there is relu, splash"
    assert unknown("run", "qqq", []) == "unknown run 'qqq'; there is none"


def test_describe_says_what_departs_from_the_defaults():
    spec = TrainSpec(seed=2, unit_options={"num_hinges": 9}, lr=0.1)
    assert (
        describe(spec) == "lenet5 · digits · splash · seed 2 · short · unit.num_hinges=9 · lr=0.1"
    )


def test_the_spec_on_disk_has_every_field():
    assert set(json.loads(TrainSpec().model_dump_json())) == set(TrainSpec.model_fields)
