"""Results as bytes: they arrive as they were, and nothing else gets in."""

import json

import pytest
import tiny_lab  # noqa: F401 - registers the network "tiny" and the data set "blobs"

from splash_units.lab.findings import finding
from splash_units.lab.jobs import is_done, perform
from splash_units.lab.parcels import OF_A_NEED, pack, pack_needs, take_in, unpack_need
from splash_units.lab.spec import AttackSpec, TrainSpec
from splash_units.lab.store import Store

TRAIN = TrainSpec(model="tiny", data="blobs", scale="smoke", batch_size=32, epochs=2)
ATTACK = AttackSpec(train=TRAIN, attack="fgsm", options={"eps": 0.1}, images=8)


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    """A worker's own store, with both done."""
    store = Store(tmp_path_factory.mktemp("there"))
    for spec in (TRAIN, ATTACK):
        perform(spec, store, threads=1)
    return store


def test_results_arrive_as_they_were(there, tmp_path):
    here = Store(tmp_path)
    for spec in (TRAIN, ATTACK):
        take_in(spec, pack(spec, there), here)
        assert is_done(spec, here)
    assert here.run(TRAIN).result() == there.run(TRAIN).result()
    assert here.run(TRAIN).history() == there.run(TRAIN).history()
    assert here.run(TRAIN).shapes().keys() == there.run(TRAIN).shapes().keys()
    assert finding(here, ATTACK).result() == finding(there, ATTACK).result()
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith((".part", ".aside"))]


def test_what_is_needed_is_enough_to_go_on(there, tmp_path):
    worker = Store(tmp_path)
    (need,) = pack_needs(ATTACK, there)
    assert set(need) == set(OF_A_NEED)
    unpack_need(need, worker)
    perform(ATTACK, worker, threads=1)
    ours, theirs = (finding(store, ATTACK).result() for store in (worker, there))
    assert ours["fooled"] == theirs["fooled"]
    assert pack_needs(TRAIN, there) == []


def test_a_result_that_is_there_stays(there, tmp_path):
    here = Store(tmp_path)
    files = pack(TRAIN, there)
    take_in(TRAIN, files, here)
    other = json.loads(files["result.json"]) | {"test_error": 0.123}
    take_in(TRAIN, {**files, "result.json": json.dumps(other).encode()}, here)
    assert here.run(TRAIN).result() == there.run(TRAIN).result()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"../../evil.py": b""}, "holds '../../evil.py'"),
        ({"model.pkl": b""}, "holds 'model.pkl'"),
        ({"spec.json": b"{"}, "no readable spec.json"),
        ({"spec.json": b'{"kind": "train"}'}, "of another spec"),
        ({"result.json": None}, "lacks result.json"),
    ],
)
def test_nothing_else_gets_in(there, tmp_path, change, said):
    here = Store(tmp_path / "runs")
    files = {**pack(TRAIN, there), **change}
    with pytest.raises(ValueError, match=said):
        take_in(TRAIN, {name: value for name, value in files.items() if value is not None}, here)
    assert not is_done(TRAIN, here)
    assert here.runs() == []
