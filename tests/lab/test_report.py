"""The report without a browser: what is judged, what is said, and that one file holds it all."""

import base64
import hashlib
import http.client
import itertools
import json
import re
import shlex
import threading

import pytest
from large_store import made_attack, made_run
from made_store import add_divergence, add_failure
from typer.testing import CliRunner

from splash_units.lab import figures, tables
from splash_units.lab.cli.app import app
from splash_units.lab.cli.attack import numbers, plan
from splash_units.lab.cli.train import spec_values
from splash_units.lab.figures.style import CONFIG
from splash_units.lab.frames import read, run_id
from splash_units.lab.report import packing, render
from splash_units.lab.report.commands import attack_command, train_command
from splash_units.lab.report.content import payload, setting_of, sort_content, spread
from splash_units.lab.report.embedding import FIGURES_ON_DARK
from splash_units.lab.report.serving import serving, store_version
from splash_units.lab.report.shapes import players
from splash_units.lab.report.verdicts import verdicts
from splash_units.lab.spec import AttackSpec, TrainSpec, train_spec
from splash_units.lab.store import Store

BETTER, WORSE = (0.10, 0.11, 0.12), (0.20, 0.21, 0.22)


def spec(unit, seed=0, scale="short", **fields):
    return TrainSpec(model="lenet5", data="cifar-10", unit=unit, seed=seed, scale=scale, **fields)


def add(store, unit, errors, **fields):
    for seed, error in enumerate(errors):
        made_run(store, spec(unit, seed, **fields), test_error=error, train_loss=error)


def judged(store):
    found = verdicts(sort_content(read(store)), store)
    return {verdict.claim.name: verdict for verdict in found}


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "runs")


@pytest.mark.parametrize(
    ("splash", "relu", "outcome"),
    [
        (BETTER, WORSE, "confirmed"),
        (WORSE, BETTER, "contradicted"),
        (BETTER, (0.11, 0.10, 0.125), "undecided"),
        (BETTER[:1], WORSE[:1], "undecided"),  # one seed has no spread to test against
        (BETTER, (), "missing"),
    ],
)
def test_a_claim_is_judged_by_what_a_test_sees(store, splash, relu, outcome):
    add(store, "splash", splash)
    add(store, "relu", relu)
    verdict = judged(store)["accuracy"]
    assert verdict.outcome == outcome
    if relu:
        (row,) = verdict.evidence
        mean = sum(splash) / len(splash) - sum(relu) / len(relu)
        assert row.difference == pytest.approx(100 * mean)
        assert (row.p is None) == (len(splash) == 1)
    else:
        assert "splash run accuracy" in verdict.claim.command


def test_settings_are_not_mixed_and_some_is_partly(store):
    add(store, "splash", BETTER)
    add(store, "relu", WORSE)
    add(store, "splash", (0.15, 0.16, 0.17), epochs=5)
    add(store, "relu", (0.15, 0.165, 0.17), epochs=5)
    verdict = judged(store)["accuracy"]
    assert [row.says for row in verdict.evidence] == ["for", "open"]
    assert verdict.outcome == "partly"
    assert "in 1 of 2 comparisons" in verdict.words


def test_the_largest_scale_decides_and_smoke_never(store):
    add(store, "splash", BETTER, scale="smoke")
    add(store, "relu", WORSE, scale="smoke")
    assert judged(store)["accuracy"].outcome == "undecided"
    add(store, "splash", WORSE, scale="paper")
    add(store, "relu", BETTER, scale="paper")
    verdict = judged(store)["accuracy"]
    assert (verdict.outcome, verdict.scale) == ("contradicted", "paper")
    assert {row.scale for row in verdict.evidence} == {"paper", "smoke"}


def test_runs_that_did_not_end_do_not_count(store):
    add(store, "splash", BETTER)
    add(store, "relu", WORSE)
    made_run(store, spec("splash", 7), status="diverged", test_error=0.9)
    (row,) = judged(store)["accuracy"].evidence
    assert row.ours == "11.00 ± 1.00 % (3)"


def test_the_best_other_unit_is_the_measure(store):
    add(store, "splash", BETTER)
    add(store, "relu", WORSE)
    add(store, "swish", (0.05, 0.051, 0.052))
    verdict = judged(store)["rivals"]
    assert verdict.outcome == "contradicted"
    assert "Swish" in verdict.evidence[0].what


@pytest.mark.parametrize(
    ("three", "eleven", "outcome"),
    [
        (WORSE, BETTER, "confirmed"),
        ((0.115, 0.105, 0.12), BETTER, "undecided"),
        (WORSE, (0.01, 0.011, 0.012), "contradicted"),
    ],
)
def test_seven_hinges_are_enough_if_fewer_are_worse_and_none_better(store, three, eleven, outcome):
    add(store, "splash", (0.101, 0.111, 0.121))
    add(store, "splash", three, unit_options={"num_hinges": 3})
    add(store, "splash", eleven, unit_options={"num_hinges": 11})
    assert judged(store)["hinges"].outcome == outcome


def test_attacks_are_compared_with_the_same_options_only(store):
    for unit, fooled in (("splash", 20), ("relu", 60)):
        for seed in range(3):
            run = spec(unit, seed)
            made_run(store, run)
            for eps in (0.02, 0.04):
                options = {"eps": eps}
                attack = AttackSpec(train=run, attack="fgsm", options=options, images=100)
                made_attack(store, attack, fooled + seed)
    found = judged(store)
    assert [row.says for row in found["fgsm"].evidence] == ["for", "for"]
    assert found["fgsm"].outcome == "confirmed"
    assert found["fgsm"].evidence[0].ours == "21.0 ± 1.0 % (3)"
    assert found["fgsm"].n == "12 attacks"
    assert found["cw"].outcome == "missing"


def test_slopes_are_counted_in_the_networks(store):
    made_run(store, spec("splash"))
    verdict = judged(store)["parameters"]
    assert verdict.outcome == "confirmed"
    assert verdict.evidence[0].other == "4 layers × 8 = 32"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"augment": "moderate", "lr": 0.05, "slope_lr": 0.5, "batch_size": 64, "compile": True},
        {"unit_options": {"num_hinges": 9, "init": "leaky_relu", "hinges": [0, 0.5, 1]}},
        {"model_options": {"name": "3", "wide": True, "note": "two words"}},
    ],
)
def test_the_command_of_a_run_gives_its_spec(fields):
    wanted = spec("splash", 3, **fields)
    words = shlex.split(train_command(wanted))
    assert words[:2] == ["splash", "train"]
    given, settings, rest = {}, [], iter(words[2:])
    for word in rest:
        if word == "--compile":
            given["compile"] = True
        elif word == "--set":
            settings.append(next(rest))
        else:
            given[word.removeprefix("--").replace("-", "_")] = next(rest)
    assert train_spec(spec_values(given, settings)) == wanted


@pytest.mark.parametrize(
    ("attack", "options"),
    [
        ("fgsm", {"eps": 0.05, "random_start": False}),
        ("pgd", {"eps": 0.02, "steps": 7, "restarts": 2}),
        ("pixels", {"k": 3, "population": 30, "generations": 4}),
    ],
)
def test_the_command_of_an_attack_gives_its_options(attack, options):
    wanted = AttackSpec(train=spec("relu"), attack=attack, options=options, images=12, seed=3)
    words = shlex.split(attack_command(wanted))
    values = dict(itertools.pairwise(words))
    assert words[:3] == ["splash", "attack", run_id(spec("relu"))]
    assert values["--seed"] == "3"
    lists = {
        "eps": numbers("--eps", values.get("--eps"), float),
        "k": numbers("--k", values.get("--k"), int),
    }
    settings = [value for flag, value in itertools.pairwise(words) if flag == "--set"]
    planned = plan(values["--attack"], "short", lists, settings, int(values["--images"]))
    assert planned == [(attack, options, 12)]


def test_a_command_names_the_run_it_begins_with():
    source = spec("splash")
    command = train_command(spec("splash_fixed", source=source))
    assert re.search(r"--source [0-9a-f]{16} --take shapes$", command)


def test_curves_are_means_and_ranges_of_whole_runs(store):
    for seed in range(2):
        made_run(store, spec("relu", seed), epochs=150)
    made_run(store, spec("relu", 2), epochs=1, status="diverged")
    found = payload(sort_content(read(store)))
    (curve,) = found["curves"]
    assert (curve["n"], len(curve["epoch"]), curve["epoch"][-1]) == (2, 100, 150)
    mean, low, high = curve["train_loss"]
    assert all(a <= b <= c for a, b, c in zip(low, mean, high, strict=True))


def test_a_spread_keeps_both_ends():
    assert spread(3, 10) == [0, 1, 2]
    assert spread(1000, 5) == [0, 250, 500, 749, 999]


def test_shapes_of_a_run_are_its_slopes(store):
    made_run(store, spec("splash"), epochs=2)
    made_run(store, spec("relu"), epochs=2)
    (found,) = players(sort_content(read(store)), store)
    assert found["times"] == [0, 1, 2]
    assert [layer["name"] for layer in found["layers"]] == ["unit1", "unit2", "unit3", "unit4"]
    assert found["layers"][0]["right"][2] == [pytest.approx(1.05), 0, 0, 0]


def test_a_setting_leaves_out_what_belongs_to_the_unit():
    options = {"num_hinges": 9}
    assert setting_of(spec("relu", 1)) == setting_of(spec("splash", 2, unit_options=options))
    assert setting_of(spec("relu")) != setting_of(spec("relu", lr=0.5))
    assert "lr 0.5" in setting_of(spec("relu", lr=0.5)).words


@pytest.fixture
def few_figures(monkeypatch):
    """All tables and figures take seconds: one test has them all, these do with one of each."""
    monkeypatch.setattr(figures, "NAMES", ("families",))
    monkeypatch.setattr(tables, "TABLES", {"accuracy": tables.TABLES["accuracy"]})


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of a store with all that can go wrong."""
    store = Store(tmp_path_factory.mktemp("store") / "runs")
    made_run(store, spec("</script><b>bold</b>"))
    add_divergence(store, spec("relu"))
    add_failure(store, spec("swish"))
    broken = store.root / "0123456789abcdef"
    broken.mkdir()
    (broken / "spec.json").write_text("{}x")
    return render(store)


@pytest.mark.usefixtures("few_figures")
def test_an_empty_store_says_how_to_fill_it(store):
    html = render(store)
    assert "There are no runs" in html
    assert "splash quickstart --store" in html
    assert html.count("not measured") >= 10


def test_what_went_wrong_is_on_the_page(page):
    for words in ("train loss not finite", "MemoryError: none left", "1 diverged, 1 failed"):
        assert words in page
    assert "0123456789abcdef" in page


@pytest.mark.usefixtures("few_figures")
def test_a_result_that_cannot_be_drawn_costs_one_figure(store, monkeypatch):
    broken = figures.Figure("families", "Families.", "family", lambda _: 1 / 0)
    monkeypatch.setattr(figures, "figure", lambda _: broken)
    assert "could not be made: ZeroDivisionError" in render(store)


def test_only_scripts_with_the_right_hash_may_run(page):
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    allowed = set(re.findall(r"sha256-([^&;' ]*)", policy.replace("&#39;", "'")))
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    hashes = {base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts}
    assert hashes == allowed
    assert len(scripts) == 2
    assert "unsafe-eval" not in policy
    assert policy.startswith("default-src &#39;none&#39;")


def test_names_are_text_everywhere(page):
    assert "</script><b>" not in page
    assert "&lt;/script&gt;&lt;b&gt;bold" in page


@pytest.mark.usefixtures("few_figures")
def test_the_command_writes_the_page(store, tmp_path):
    made_run(store, spec("splash"))
    output = tmp_path / "deep" / "page.html"
    options = ["report", "--store", str(store.root), "--output", str(output)]
    done = CliRunner().invoke(app, options)
    assert done.exit_code == 0, done.output
    assert f"report: {output}" in done.output
    assert output.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    refused = CliRunner().invoke(app, [*options[:-1], str(tmp_path)])
    assert refused.exit_code == 2
    assert "is a folder" in refused.stderr


def ask(server, path, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body


@pytest.mark.usefixtures("few_figures")
def test_a_served_report_follows_its_store_and_answers_this_machine_only(store):
    with serving(store) as server:
        assert server.server_address[0] == "127.0.0.1"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        before = ask(server, "/version")[1]
        status, page = ask(server, "/")
        assert status == 200
        assert f'data-live="{before}"' in page
        assert "connect-src &#39;self&#39;" in page
        made_run(store, spec("splash"))
        assert ask(server, "/version")[1] != before
        assert "1 run: 1 done" in ask(server, "/")[1]
        assert ask(server, "/", Host="evil.example")[0] == 403
        assert ask(server, "/../etc/passwd")[0] == 404
        server.shutdown()


def test_a_version_changes_with_attacks_and_failures_and_not_with_locks(store):
    run = spec("relu")
    made_run(store, run)
    before = store_version(store.root)
    (store.root / ".locks").mkdir()
    assert store_version(store.root) == before
    made_attack(store, AttackSpec(train=run, attack="fgsm", options={"eps": 0.1}, images=10))
    attacked = store_version(store.root)
    add_failure(store, spec("swish"))
    assert len({before, attacked, store_version(store.root)}) == 3


def test_payload_is_plain_json(store):
    made_run(store, spec("splash"), test_error=float("nan"))
    text = json.dumps(payload(sort_content(read(store))), allow_nan=False)
    assert json.loads(text)["runs"]


def test_a_figures_own_words_can_be_read_on_a_dark_page():
    for part in ("axis", "title", "legend", "header"):
        inks = {value for key, value in CONFIG[part].items() if key.lower().endswith("color")}
        assert inks
        assert inks <= FIGURES_ON_DARK.keys(), part


def test_vega_is_packed_once_and_again_if_damaged(tmp_path, monkeypatch):
    packed = iter(["one", "two", "three"])
    monkeypatch.setattr("vl_convert.javascript_bundle", lambda: next(packed))
    folder = tmp_path / "cache"
    assert packing.vega(folder) == b"one"
    assert packing.vega(folder) == b"one"
    (kept,) = folder.iterdir()
    kept.write_text("on")
    assert packing.vega(folder) == b"two"
    assert packing.vega(folder) == b"two"
    (tmp_path / "file").touch()
    assert packing.vega(tmp_path / "file") == b"three"  # nothing can be kept there
