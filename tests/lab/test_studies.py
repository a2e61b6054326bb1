"""The studies: which runs they ask for, what can be selected, and files that say it wrongly."""

import hashlib
import re
from collections import Counter
from importlib import resources
from pathlib import Path

import pytest

from splash_units import catalogue
from splash_units.lab import plugins, quickstart, studies, vocabulary
from splash_units.lab.frames import label
from splash_units.lab.spec import AttackSpec, CostSpec, TrainSpec, TransferSpec, digest, needs
from splash_units.lab.studies import accuracy, family, published
from splash_units.lab.studies.files import FIGURES, TABLES
from splash_units.lab.studies.selection import parse
from splash_units.lab.studies.study import stand_in, with_data

REPOSITORY = Path(__file__).parents[2]
SCALES = ("smoke", "short", "paper")
#: What each asks for at the paper's scale, its five seeds multiplied out by hand.
AT_PAPER_SCALE = {
    "accuracy": {"train": 15 * 10 * 5},
    "cost": {"cost": 2, "train": 2 * 10 * 5},
    "hinges": {"train": 2 * 5 * 2 * 5},
    "initialisation": {"train": 7 * 5},
    "evolution": {"train": 3},
    "ablation": {"train": 5 * 5},
    "pixels": {"attack": 5 * 4 * 3 * 5},
    "boundary": {"attack": 5 * 4 * 5},
    "fgsm": {"attack": 5 * 4 * 3 * 5},
    "cw": {"attack": 5 * 4 * 5},
    "separation": {"separation": 2 * 5},
    "family": {},
    "verdict": {"attack": 5 * 4 * 2 * 5 * 5, "transfer": 5 * 5},
    "finetune": {"train": 2 * 3 * 5},
}


def kinds(specs):
    return dict(Counter(spec.kind for spec in specs))


@pytest.mark.parametrize(("name", "expected"), AT_PAPER_SCALE.items())
def test_the_number_of_runs_at_paper_scale(name, expected):
    assert kinds(studies.load(name).specs("paper")) == expected


@pytest.mark.parametrize("name", studies.NAMES)
@pytest.mark.parametrize("scale", SCALES)
def test_every_spec_is_of_its_scale_and_there_once(name, scale):
    specs = studies.load(name).specs(scale, seeds=1)
    assert len({digest(spec) for spec in specs}) == len(specs)
    trains = [train for spec in specs for train in (needs(spec) or (spec,))]
    assert {train.scale for train in trains if isinstance(train, TrainSpec)} <= {scale}


@pytest.mark.parametrize("name", [name for name in studies.NAMES if name != "paper"])
def test_every_name_in_a_study_is_known(name):
    vocabulary.check(studies.load(name).specs("smoke"))


def test_vocabulary_refuses_what_there_is_not():
    train = TrainSpec(model="lenet")
    attack = AttackSpec(train=TrainSpec(), attack="fgsm", options={"epsilon": 1})
    for spec, wrong in [
        (train, "lenet5"),
        (TrainSpec(data="cifar"), "cifar-10"),
        (TrainSpec(unit="splosh"), "splash"),
        (TrainSpec(unit_options={"num_hinges": 4}), "odd"),
        (TrainSpec(recipe="literal"), "rescaled"),
        (TrainSpec(model="resnet20", model_options={"preactivated": True}), "preactivation"),
        (TrainSpec(model="nin", model_options={"dropout": [0.5]}), "2 dropout probabilities"),
        (TrainSpec(source=train), "lenet5"),
        (attack, "eps"),
        (TransferSpec(trains=(TrainSpec(), train)), "lenet5"),
    ]:
        with pytest.raises(ValueError, match=wrong):
            vocabulary.check([spec])


@pytest.mark.parametrize("name", AT_PAPER_SCALE)
def test_a_study_says_what_it_reproduces_costs_and_is_called_by(name):
    text = studies.load(name).text
    assert re.search(r"Reproduces|Beyond the paper", text)
    assert "Cost:" in text
    assert "paper" in text
    assert re.search(rf"    splash (run|table) {name}", text)


@pytest.mark.parametrize("name", AT_PAPER_SCALE)
def test_the_costs_in_the_text_are_the_real_ones(name):
    """Where the text gives a number of runs for a scale, it is that of the specs."""
    study = studies.load(name)
    _, _, text = " ".join(study.text.split()).partition("Cost:")
    for scale in SCALES:
        specs = study.specs(scale)
        trainings = {needed for spec in specs for needed in needs(spec)}
        real = {*kinds(specs).values(), len(trainings)}
        said = re.findall(rf"(\d+)(?: \w+){{0,4}} at `{scale}`", text)
        assert {int(count) for count in said} <= real
        assert said or name in ("evolution", "separation", "family")


def test_paper_is_all_of_them_each_run_once():
    paper = {digest(spec) for spec in studies.load("paper").specs("short")}
    every = {digest(s) for name in AT_PAPER_SCALE for s in studies.load(name).specs("short")}
    assert paper == every
    assert set(studies.load("paper").tables) == {
        table for name in AT_PAPER_SCALE for table in studies.load(name).tables
    }


def test_runs_are_shared_between_studies():
    """SPLASH with seven hinges is SPLASH, whichever study asks."""
    main = {digest(spec) for spec in studies.load("accuracy").specs("short", 1)}
    for name, shared in [("hinges", 1), ("ablation", 2), ("initialisation", 2), ("finetune", 2)]:
        assert len(main & {digest(s) for s in studies.load(name).specs("short", 1)}) == shared
    for name in ("pixels", "boundary", "fgsm", "cw", "verdict", "separation"):
        needed = {digest(train) for s in studies.load(name).specs("short", 1) for train in needs(s)}
        assert needed <= main


def test_the_quick_start_is_a_study():
    declared = studies.load("quickstart").specs("short")
    assert [spec for spec in declared if isinstance(spec, TrainSpec)] == quickstart.specs()
    assert "quickstart" not in studies.load("paper").text


def test_accuracy_has_the_papers_columns_and_units():
    assert len(accuracy.SETTINGS) == 15
    assert {setting.data for setting in accuracy.SETTINGS if setting.model == "lenet5"} == {
        "mnist",
        "cifar-10",
    }
    units = {spec.unit for spec in studies.load("accuracy").specs("smoke")}
    assert len(units) == 10
    assert units <= set(catalogue.names())


def test_fixed_splash_takes_the_shapes_of_the_same_seed():
    specs = studies.load("ablation").specs("short")
    fixed = [spec for spec in specs if spec.source is not None]
    assert len(fixed) == 3
    assert all(s.source.seed == s.seed and s.take == "shapes" for s in fixed)
    assert all(spec.source in specs for spec in fixed)


def test_seeds_and_scales():
    study = studies.load("ablation")
    assert {spec.seed for spec in study.specs("short")} == {0, 1, 2}
    assert {spec.seed for spec in study.specs("smoke", seeds=7)} == set(range(7))
    with pytest.raises(ValueError, match="at least 1"):
        study.specs("short", seeds=0)
    with pytest.raises(ValueError, match="'shorter'; did you mean short"):
        study.specs("shorter")
    with pytest.raises(ValueError, match="did you mean accuracy"):
        studies.load("acuracy")


@pytest.mark.parametrize(
    ("name", "only", "expected"),
    [
        ("accuracy", "model=lenet5,unit=relu+splash", {"train": 3 * 2}),
        ("accuracy", "augment=moderate, data=cifar-100", {"train": 3 * 10}),
        ("hinges", "unit=splash S=9 share=unit", {"train": 2}),
        ("fgsm", "model=nin,seed=0", {"attack": 12}),
        ("verdict", "model=lenet5,attack=pgd", {"transfer": 2}),
        ("verdict", "attack=noise,unit=relu", {"attack": 25}),
        ("verdict", "kind=transfer,unit=relu+splash", {"transfer": 5}),
        ("verdict", "unit=splash,model=nin", {"attack": 10}),
        ("cost", "model=mlp,unit=splash", {"cost": 1, "train": 5}),
        ("cost", "unit=relu", {"train": 2}),
        ("cost", "seed=0,model=mlp", {"train": 10}),
        ("separation", "unit=relu", {"separation": 1}),
    ],
)
def test_only(name, only, expected):
    assert kinds(studies.load(name).specs("smoke", only=only)) == expected


def test_only_keeps_relu_as_the_measure_of_costs():
    (cost,) = studies.load("cost").specs("smoke", only="kind=cost,model=mlp,unit=apl")
    assert [choice.unit for choice in cost.units] == ["relu", "apl"]


@pytest.mark.parametrize(
    ("only", "complaint"),
    [
        ("modl=lenet5", "unknown key 'modl'; did you mean model?"),
        ("model=lenet", "unknown model 'lenet'; did you mean lenet5"),
        ("unit=selu", "unknown unit 'selu'"),
        ("model", "KEY=VALUE"),
        ("model=", "KEY=VALUE"),
        ("model=nin,model=lenet5", "given twice"),
    ],
)
def test_a_wrong_selection_names_what_is_near(only, complaint):
    with pytest.raises(ValueError, match=re.escape(complaint)):
        studies.load("accuracy").specs("smoke", only=only)


def test_a_selection_is_read_with_blanks_and_without():
    assert parse("model=a + b, unit=c") == {"model": {"a", "b"}, "unit": {"c"}}


def test_another_data_set_takes_the_place_of_all():
    for name in studies.NAMES:
        assert studies.data_of(studies.load(name).specs("smoke", data="digits")) <= {"digits"}
    part = studies.load("accuracy").specs("smoke", only="data=mnist,unit=relu", data="digits")
    assert [(spec.model, spec.data) for spec in part] == [("lenet5", "digits")]
    source = TrainSpec(data="mnist")
    moved = with_data(TrainSpec(data="mnist", source=source), "digits")
    assert moved.source.data == "digits"


def test_digits_stand_in_at_smoke_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SPLASH_DATA", str(tmp_path))
    specs = studies.load("ablation").specs("smoke")
    assert stand_in(specs, "smoke") == "digits"
    assert stand_in(specs, "short") is None
    assert stand_in([TrainSpec(data="digits")], "smoke") is None


def test_family_counts_by_hand():
    counts = {name: count(7) for name, count in family.PARAMETERS.items()}
    assert list(counts.values()) == [23, 16, 15, 11, 8]
    assert [count(2) for count in family.PARAMETERS.values()] == [8, 6, 5, 4, 3]


# The published numbers


def test_published_numbers_are_those_of_the_source():
    content = resources.files(studies).joinpath("published.csv").read_bytes()
    assert hashlib.sha256(content).hexdigest() == (
        "49e445299469e5e2099d2b75a9a3091b4d50efe712ddd8bbe278fdfa0e7c6792"
    )
    lines = content.decode().splitlines()
    assert len(lines) == 348
    frame = published.frame()
    names = lines[0].split(",")
    for line, row in zip(lines[1:], frame.iter_rows(named=True), strict=True):
        words = line.split(",")
        assert [row[name] for name in names[:-2]] == words[:-2]
        assert row["mean"] == float(words[-2])
        assert row["std"] == (float(words[-1]) if words[-1] else None)


def test_published_spot_checks():
    """Read off the paper's tables by eye."""

    def value(*args, **where):
        found = published.value(*args, **where)
        return found and (found.mean, found.std)

    error = ("accuracy", "error_rate_pct")
    assert value(*error, model="resnet20", data="cifar-100", unit="splash", augment="moderate") == (
        32.12,
        0.77,
    )
    assert value(*error, model="allcnn", data="cifar-10", unit="maxout", augment="moderate") == (
        7.45,
        0.41,
    )
    assert value(*error, model="nin", data="cifar-10", unit="apl", augment="none") is None  # cited
    assert value(*error, model="lenet5", data="digits", unit="relu") is None
    hits = {"model": "nin", "data": "cifar-10", "unit": "apl"}
    assert value("one_pixel", "n_success_of_1000", setting="pixels=3", **hits) == (661, 19.9)
    mlp = {"model": "mlp", "data": "mnist", "unit": "splash", "setting": "S=9;independent"}
    assert value("num_hinges", "error_rate_pct", **mlp) == (1.08, None)
    assert value("additional_params", "additional_params", **mlp) == (3520, None)


def test_published_p_values_recomputed():
    """Welch and Student, two-sided, from the printed means and deviations of five runs."""
    expected = [
        (0.030, 0.024), (0.325, 0.322), (0.574, 0.573),
        (0.242, 0.241), (0.176, 0.175), (0.006, 0.006), (0.003, 0.002),
        (0.552, 0.549), (0.328, 0.328), (0.069, 0.067), (0.607, 0.606),
        (0.431, 0.425), (0.463, 0.457), (0.167, 0.161), (0.458, 0.458),
    ]  # fmt: skip
    found = published.p_values()
    assert [
        (round(p.computed.welch_p, 3), round(p.computed.student_p, 3)) for p in found
    ] == expected
    assert [p.printed for p in found][:3] == [0.057, 0.043, 0.055]
    assert not any(p.reproduced for p in found)
    near = [p for p in found if abs(p.computed.welch_p - p.printed) < 0.005]
    assert [(p.model, p.data, p.augment) for p in near] == [("allcnn", "cifar-100", "none")]
    assert [p.comparable for p in found] == [True] * 11 + [False] * 4
    assert {p.computed_with for p in found[11:]} == {"apl"}


# Files

FILE = """\
title = "Is nine enough?"
models = ["lenet5", "mlp"]       # networks
data = "digits"
augment = ["none", "moderate"]
units = [
    "relu",
    "splash",
    { name = "splash", num_hinges = 9 },
]
attacks = ["cw", { name = "fgsm", eps = 0.03, images = 7 }]
seeds = 2

[train]
epochs = 3
"""


@pytest.fixture
def read(tmp_path: Path):
    def read(text: str) -> studies.Study:
        path = tmp_path / "nine.toml"
        path.write_text(text)
        return studies.load(path)

    return read


def test_a_file_is_a_study(read, tmp_path):
    study = read(FILE)
    assert (study.name, study.title) == ("nine", "Is nine enough?")
    assert study.called == str(tmp_path / "nine.toml")
    assert study.tables == ("results", "comparison", "attacks")
    specs = study.specs("short")
    assert kinds(specs) == {"train": 2 * 2 * 3 * 2, "attack": 2 * 2 * 3 * 2 * 2}
    trains = [spec for spec in specs if isinstance(spec, TrainSpec)]
    assert {train.epochs for train in trains} == {3}
    assert {train.unit_options.get("num_hinges") for train in trains} == {None, 9}
    (fgsm,) = {(s.images, s.options["eps"], s.options["random_start"])
               for s in specs if isinstance(s, AttackSpec) and s.attack == "fgsm"}  # fmt: skip
    assert fgsm == (7, 0.03, True)
    assert all(s.seed == s.train.seed for s in specs if isinstance(s, AttackSpec))
    assert study.specs("short", only="unit=splash S=9,kind=train,seed=1,model=mlp,augment=none")
    assert isinstance(studies.load(str(tmp_path / "nine.toml")), studies.Study)


def test_a_file_needs_three_lines(read):
    study = read('models = ["mlp"]\ndata = ["digits"]\nunits = ["relu"]\n')
    assert [len(study.specs(scale)) for scale in SCALES] == [1, 3, 5]
    assert study.tables == ("results", "comparison")


@pytest.mark.parametrize(
    ("right", "wrong", "line", "complaint"),
    [
        ("seeds = 2", "sedes = 2", 11, "unknown key 'sedes'; did you mean seeds"),
        ('"lenet5"', '"lenet"', 2, "unknown network 'lenet'; did you mean lenet5"),
        ('"digits"', '"digit"', 3, "unknown data set 'digit'; did you mean digits"),
        ('"moderate"', '"moderat"', 4, "must be 'none', 'moderate' or 'heavy'"),
        ('"relu"', '"rellu"', 6, "unknown unit 'rellu'; did you mean relu"),
        ("num_hinges", "num_hinge", 8, "no option 'num_hinge'; its options are num_hinges"),
        ("num_hinges = 9", "num_hinges = 4", 8, "must be odd"),
        ('name = "splash", ', "", 8, "has no name"),
        ('"cw"', '"cv"', 10, "unknown attack 'cv'; did you mean cw"),
        ("eps = 0.03", "epss = 0.03", 10, "'epss'; did you mean eps"),
        ("eps = 0.03", "eps = -1", 10, "eps must be above 0"),
        ("images = 7", "images = 0", 10, "images = 0: must be 1 or more"),
        ("images = 7", 'choose = "some"', 10, "must be 'right' or 'all'"),
        ("seeds = 2", "seeds = 0", 11, "1 or more"),
        ("seeds = 2", "seeds = true", 11, "1 or more"),
        ("seeds = 2", 'tables = ["reslts"]', 11, "unknown table 'reslts'; did you mean results"),
        ("seeds = 2", 'figures = ["worst"]', 11, "unknown figure 'worst'; did you mean worst-case"),
        ("seeds = 2", "title2 = 3", 11, "did you mean title"),
        ('title = "Is nine enough?"', "title = 9", 1, "title = 9: must be a text"),
        ('"digits"', "[]", 3, "data is empty"),
        ('"digits"', "[3]", 3, "must be a list of names"),
        ("[train]", "[trian]", 13, "unknown key 'trian'; did you mean train"),
        ("epochs = 3", "epoch = 3", 14, "unknown setting 'epoch'; did you mean epochs"),
        ("epochs = 3", "epochs = 0", 14, "epochs = 0: must be greater than or equal to 1"),
        ("epochs = 3", "seed = 1", 14, "unknown setting 'seed'"),
        ("seeds = 2", "seeds = ", 11, "not TOML"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_its_line(read, right, wrong, line, complaint):
    assert FILE.count(right) >= 1
    with pytest.raises(ValueError, match=re.escape(complaint)) as caught:
        read(FILE.replace(right, wrong, 1))
    assert re.search(rf"nine\.toml.*line {line}\b", str(caught.value))


def test_a_file_lacks_what_it_needs(read):
    with pytest.raises(ValueError, match="units is missing; a study needs models, data and units"):
        read('models = ["mlp"]\ndata = ["digits"]\n')
    with pytest.raises(ValueError, match="no variant 'literal'"):
        read(FILE.replace("epochs = 3", 'recipe = "literal"'))


def test_a_line_is_found_past_comments_and_the_same_word_elsewhere(read):
    text = '# seeds, units = ["rellu"]\nmodels = ["mlp"]\ndata = ["digits"]\n'
    text += 'units = [ # rellu\n"relu",\n"rellu"]\n'
    with pytest.raises(ValueError, match=r"line 6: unknown unit 'rellu'"):
        read(text)
    text = 'models = ["mlp"]\ndata = ["digits"]\n[[units]]\nname = "splash"\nnum_hinges = 9\n'
    text += '[[units]]\nname = "splash"\nnum_hinges = 8\n'
    with pytest.raises(ValueError, match=r"line 8: .*must be odd"):
        read(text)


def test_the_example_is_a_study_with_a_unit_of_its_own():
    examples = REPOSITORY / "examples"
    lines = (examples / "own_unit.toml").read_text().splitlines()
    assert len([line for line in lines if line.strip()]) <= 10
    with pytest.raises(ValueError, match=r"own_unit\.toml, line 5: unknown unit 'snake'"):
        studies.load(examples / "own_unit.toml")
    plugins.load([str(examples / "own_unit.py")])
    study = studies.load(examples / "own_unit.toml")
    assert kinds(study.specs("short")) == {"train": 4 * 3, "attack": 4 * 3}
    assert "snake frequency=1" in {label(spec) for spec in study.specs("short", only="kind=train")}


def test_the_page_shows_the_example_and_its_code_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (REPOSITORY / "docs" / "studies.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)
    example = (REPOSITORY / "examples" / "own_unit.toml").read_text(encoding="utf-8")
    assert shown == re.sub(r"^#.*\n", "", example)
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    exec(code, {})
    assert set(re.findall(r"^\| `(\w+)` \| ", page, flags=re.MULTILINE)) >= set(studies.NAMES)


def test_the_page_on_statistics_has_the_computed_p_values():
    page = (REPOSITORY / "docs" / "statistics.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    exec(code, {})
    shown = re.findall(r"\| (0\.\d{3}) \| (0\.\d{3}) \| (0\.\d{3}) \|$", page, flags=re.MULTILINE)
    assert [tuple(map(float, row)) for row in shown] == [
        (p.printed, round(p.computed.welch_p, 3), round(p.computed.student_p, 3))
        for p in published.p_values()
    ]


def test_what_a_file_may_show_is_there():
    from splash_units.lab import tables

    assert set(TABLES) == set(tables.OWN)
    assert set(FIGURES) <= set(studies.load("paper").figures)


def test_costs_begin_with_relu():
    costs = [s for s in studies.load("cost").specs("paper") if isinstance(s, CostSpec)]
    assert [cost.units[0].label for cost in costs] == ["relu", "relu"]
    assert [len(cost.units) for cost in costs] == [10, 10]
