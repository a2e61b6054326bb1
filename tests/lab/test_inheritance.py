"""Trainings that begin with another's shapes or weights."""

import pytest
import tiny_lab  # noqa: F401 - registers the network "tiny" and the data set "blobs"
import torch
from typer.testing import CliRunner

from splash_units.lab import data
from splash_units.lab.assembly import build_network, network_arguments, slopes_of
from splash_units.lab.cli.app import app
from splash_units.lab.events import EpochDone, Progress
from splash_units.lab.inheritance import inherit
from splash_units.lab.runner import complete, load_network, run
from splash_units.lab.spec import TrainSpec, train_spec
from splash_units.lab.store import Store

SHORT = {"model": "tiny", "data": "blobs", "scale": "smoke", "batch_size": 32, "epochs": 2}


def spec(unit, **fields):
    return TrainSpec(unit=unit, **{**SHORT, **fields})


SPLASH, RELU = spec("splash"), spec("relu")
FIXED = spec("splash", seed=1, source=SPLASH, take="shapes", epochs=3)
TUNED = spec("splash", source=RELU, take="weights", lr=0.001, epochs=3)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("store"))
    for source in (SPLASH, RELU):
        complete(source, store, threads=1)
    return store


@pytest.fixture(scope="module")
def arguments():
    return network_arguments(data.load("blobs"))


def fresh(wanted, arguments, source):
    network = build_network(wanted, arguments)
    inherit(network, wanted, source)
    return network


def test_fixed_shapes_are_the_sources_and_weights_are_fresh(store, arguments):
    source = load_network(store.run(SPLASH))
    network = fresh(FIXED, arguments, source)
    untouched = build_network(FIXED, arguments)
    learned, slopes = slopes_of(source), slopes_of(network)
    assert not torch.equal(learned["body.unit1.a_pos"], slopes_of(untouched)["body.unit1.a_pos"])
    for name, slope in slopes.items():
        assert torch.equal(slope, learned[name])
        assert not slope.requires_grad
    kernels = {n: p for n, p in network.named_parameters() if n not in slopes}
    assert all(p.requires_grad for p in kernels.values())
    for name, kernel in untouched.named_parameters():
        assert name in slopes or torch.equal(kernels[name], kernel)


def test_fixed_shapes_stay_while_the_network_learns(store):
    finished = complete(FIXED, store, threads=1)
    learned, kept = store.run(SPLASH).model(), finished.model()
    slopes = [name for name in kept if name.endswith(("a_pos", "a_neg"))]
    assert len(slopes) == 4
    assert all(torch.equal(kept[name], learned[name]) for name in slopes)
    history = finished.history()
    assert history[-1]["train_loss"] < history[0]["train_loss"]


def test_a_relu_network_with_splash_units_gives_the_same_bits(store, arguments):
    images = torch.rand(64, 1, 12, 12)
    source = load_network(store.run(RELU))
    network = fresh(TUNED, arguments, source).eval()
    assert torch.equal(network(images), source(images))
    assert all(slope.requires_grad for slope in slopes_of(network).values())


def test_a_relu_network_with_splash_units_learns_its_shapes(store):
    tuned = complete(TUNED, store, threads=1)
    slopes = tuned.shapes()["body.unit1.1.a_neg"]
    assert (slopes[0] == 0).all()
    assert (slopes[-1] != 0).any()
    first = tuned.history()[0]
    assert first["train_loss"] < store.run(RELU).history()[0]["train_loss"]
    assert first["lr"] == 0.001


def test_the_same_unit_goes_on_with_its_shapes(store, arguments):
    more = spec("splash", source=SPLASH, take="weights", seed=7)
    source = load_network(store.run(SPLASH))
    state = fresh(more, arguments, source).state_dict()
    assert all(torch.equal(state[name], value) for name, value in source.state_dict().items())


@pytest.mark.parametrize("wanted", [FIXED, TUNED], ids=["shapes", "weights"])
def test_one_that_was_stopped_ends_with_the_same_bits(store, tmp_path, wanted):
    whole = complete(wanted, store, threads=1).result()
    stopped = Store(tmp_path)
    complete(wanted.source, stopped, threads=1)
    events = run(wanted, stopped, threads=1)
    while not isinstance(next(events), EpochDone):
        pass
    assert isinstance(next(events), Progress)
    events.close()
    assert stopped.run(wanted).status().state == "interrupted"
    assert complete(wanted, stopped).result()["model_sha256"] == whole["model_sha256"]
    assert len(stopped.run(wanted).record()["sessions"]) == 2


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (spec("splash", source=RELU), "no units that learn a shape"),
        (spec("splash", source=SPLASH, unit_options={"hinges": [0, 1, 2, 3]}), "hinges is"),
        (spec("splash", source=SPLASH, unit_options={"num_hinges": 5}), "hinges is"),
        (spec("prelu", source=SPLASH), "built differently"),
        (spec("maxout", source=RELU, take="weights"), "has shape"),
        (spec("relu", source=RELU, take="weights", model="mlp"), "built differently"),
        (spec("relu", source=spec("relu", seed=9)), "not there yet"),
        (spec("relu", source=spec("splash_literal", lr=1e9), take="weights"), "diverged"),
    ],
)
def test_what_cannot_be_taken_is_said_before_anything_is_trained(store, wanted, said):
    if "diverged" in said:
        complete(wanted.source, store, threads=1)
    with pytest.raises(ValueError, match=said):
        complete(wanted, store, threads=1)
    assert store.run(wanted).status().state == "missing"


def test_weights_need_a_source():
    with pytest.raises(ValueError, match=r"^take = 'weights': needs a source"):
        train_spec({"take": "weights"})


def test_the_command_takes_a_run_by_its_name(store):
    arguments = ["train", "--store", str(store.root), "--threads", "1", "--seed", "1"]
    for name, value in SHORT.items():
        arguments += [f"--{name.replace('_', '-')}", str(value)]
    arguments += ["--epochs", "3", "--take", "shapes", "--source", store.run(SPLASH).id[:10]]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert f"shapes of {store.run(SPLASH).id[:8]}" in done.output
    assert store.run(FIXED).result()
    wrong = CliRunner().invoke(app, [*arguments, "--source", "zzz"])
    assert wrong.exit_code == 2
    assert "unknown run 'zzz'" in wrong.stderr
