"""How the gradient of a shared slope should be scaled: rules compared by training loss.

    python benchmarks/slopes.py compare threefold stability longer epochs [--only resnet20]
    python benchmarks/slopes.py tables

`compare` trains the MLP, LeNet5 and ResNet-20 at their recipes' learning rates, the slopes by one
rule after the other; `threefold` does so with ResNet-20 at three times the rate. `stability` takes
the default rule through all five networks, three ways of sharing, SGD and Adam, at the usual
learning rate and at three times it, `longer` two of them for more steps. `epochs` trains ResNet-20
on all images. `tables` prints what docs/slopes.md shows. Nothing looks at a test image.

Each finished run is a line of the results file, and is not done again. Learning rates stay where a
recipe starts: two epochs of a schedule pressed into two epochs would show its last phase, too.
"""

import argparse
import json
import math
import shlex
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from splash_units import Splash
from splash_units.lab import data
from splash_units.lab.assembly import (
    build_network,
    build_optimizer,
    laid_out,
    network_arguments,
    slopes_of,
    wants_channels_last,
)
from splash_units.lab.machine import describe_machine, now
from splash_units.lab.plan import plan
from splash_units.lab.process import own_settings, seed_dropout
from splash_units.lab.spec import TrainSpec, stream_seed
from splash_units.lab.training import resident, training_batches
from splash_units.sharing import SHARES

RESULTS = Path(__file__).parent / "results" / "slopes.jsonl"
PARTS = 10  # of a run, for its curve
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Rule:
    """How slopes learn: gradients times factor/nᵖᵒʷᵉʳ (at most 1), then SGD, clipped SGD or Adam.

    n is how many elements of one sample share a slope. `clip` is the largest norm of all slopes'
    gradients together, `adam` a learning rate. A rule without a factor leaves the unit its default.
    """

    name: str
    factor: float | None = 1.0
    power: float = 0.0
    clip: float | None = None
    adam: float | None = None

    def scale(self, sharing: int) -> float:
        assert self.factor is not None, f"{self.name} leaves the scale to the unit"
        return min(1.0, self.factor * sharing**-self.power)


DEFAULT = Rule("default", factor=None)
RELU = Rule("relu", factor=None)
LITERAL = Rule("literal")
RULES = (
    RELU,
    LITERAL,
    Rule("0.1", 0.1),
    Rule("0.01", 0.01),
    Rule("1/n^(1/4)", 1.0, 1 / 4),
    Rule("1/sqrt(n)", 1.0, 1 / 2),
    Rule("3/sqrt(n)", 3.0, 1 / 2),
    Rule("5/sqrt(n)", 5.0, 1 / 2),
    Rule("10/sqrt(n)", 10.0, 1 / 2),
    Rule("1/n^(3/4)", 1.0, 3 / 4),
    Rule("1/n", 1.0, 1.0),
    Rule("clipped to 1", clip=1.0),
    Rule("clipped to 0.1", clip=0.1),
    Rule("Adam at 0.001", adam=0.001),
    Rule("Adam at 0.01", adam=0.01),
)


@dataclass(frozen=True)
class Job:
    """One training: its spec, and how its slopes learn."""

    study: str
    rule: Rule
    spec: TrainSpec

    def key(self) -> dict[str, Any]:
        """What tells it from every other, as it is written in the results."""
        fields = self.spec.model_dump(mode="json", exclude_defaults=True)
        return {"study": self.study, "rule": self.rule.name, "spec": fields}


@dataclass
class Course:
    """What a training went through so far."""

    losses: list[float] = field(default_factory=list)
    steps: int = 0
    largest_slope: float = 0.0
    diverged: bool = False

    def summary(self, seconds: float) -> dict[str, Any]:
        """Numbers as JSON has them; a run that diverged has no loss."""
        parts = [
            self.losses[self.steps * i // PARTS : self.steps * (i + 1) // PARTS]
            for i in range(PARTS)
        ]
        half = self.losses[self.steps // 2 :]
        return {
            "steps": self.steps,
            "diverged_at": len(self.losses) if self.diverged else None,
            "second_half": None if self.diverged else statistics.fmean(half),
            "curve": [round(statistics.fmean(part), 4) for part in parts if part],
            "largest_slope": round(self.largest_slope, 4),
            "seconds": round(seconds, 1),
        }


# --- what is trained --------------------------------------------------------------------------

_CIFAR_SHIFTED = {"data": "cifar-10", "fraction": 0.1024, "augment": "moderate"}
SMALL = {
    # Two epochs each, of as many images as a core has time for.
    "mlp": {"data": "mnist", "epochs": 2},
    "lenet5": {"data": "cifar-10", "epochs": 2, "fraction": 0.25},
    "resnet20": {"epochs": 2, **_CIFAR_SHIFTED},
}
TRIED = {
    "mlp": {"data": "mnist", "fraction": 0.5},
    "lenet5": {"data": "cifar-10", "fraction": 0.25},
    "resnet20": {**_CIFAR_SHIFTED, "fraction": 0.04096, "batch_size": 32},
    "nin": {"data": "cifar-10", "fraction": 0.0064, "batch_size": 16},
    "allcnn": {"data": "cifar-10", "fraction": 0.0064, "batch_size": 16},
}
RATES = {
    "sgd": {"mlp": 0.01, "lenet5": 0.01, "resnet20": 0.1, "nin": 0.05, "allcnn": 0.1},
    # The recipes are for SGD; this is the learning rate that Adam is mostly used with.
    "adam": dict.fromkeys(TRIED, 0.001),
}


def compare(seeds: Sequence[int] = (0, 1, 2)) -> Iterator[Job]:
    for seed, model, rule in product(seeds, SMALL, RULES):
        yield Job("compare", rule, _spec(rule, model=model, seed=seed, **SMALL[model]))


def stability() -> Iterator[Job]:
    """The default at one and three times the learning rate, beside ReLU and the literal unit."""
    for times, optimizer, model in product((3, 1), RATES, TRIED):
        settings = _tried(model, optimizer, times)
        yield Job("stability", RELU, _spec(RELU, **settings))
        for share in SHARES:
            shared = {"unit_options": {} if share == "layer" else {"share": share}}
            yield Job("stability", DEFAULT, _spec(DEFAULT, **settings, **shared))


def longer() -> Iterator[Job]:
    """The two large networks for three times as many steps."""
    for times, model in product((3, 1), ("nin", "allcnn")):
        settings = {**_tried(model, "sgd", times), "epochs": 3}
        for rule in (DEFAULT, RELU):
            yield Job("longer", rule, _spec(rule, **settings))


def _tried(model: str, optimizer: str, times: int) -> dict[str, Any]:
    """How `stability` trains a network, at so many times its learning rate."""
    lr = times * RATES[optimizer][model]
    return {"epochs": 1, **TRIED[model], "model": model, "optimizer": optimizer, "lr": lr}


def threefold() -> Iterator[Job]:
    """Every rule where it is hardest: ResNet-20 at three times its learning rate, small batches."""
    settings = {"model": "resnet20", "lr": 0.3, "epochs": 1, "batch_size": 32, **_CIFAR_SHIFTED}
    for rule in RULES:
        yield Job("threefold", rule, _spec(rule, **settings))
    for rule in (rule for rule in RULES if rule.name in ("1/sqrt(n)", "3/sqrt(n)")):
        shared = {"unit_options": {"share": "channel"}}
        yield Job("threefold by channel", rule, _spec(rule, **settings, **shared))


def epochs(seeds: Sequence[int] = (0, 1, 2)) -> Iterator[Job]:
    """ResNet-20 on all images."""
    settings = {"model": "resnet20", "data": "cifar-10", "epochs": 2, "augment": "moderate"}
    for seed, rule in product(seeds, (LITERAL, DEFAULT, RELU)):
        yield Job("epochs", rule, _spec(rule, seed=seed, **settings))


def _spec(rule: Rule, **fields: Any) -> TrainSpec:
    unit = "relu" if rule == RELU else "splash"
    return TrainSpec(unit=unit, scale="paper", **fields)


STUDIES = {
    "compare": compare,
    "threefold": threefold,
    "stability": stability,
    "longer": longer,
    "epochs": epochs,
}


# --- training ---------------------------------------------------------------------------------


def follow(job: Job) -> Course:
    """Train as the lab does, at a constant learning rate, until the end or a loss that is none."""
    spec, rule = job.spec, job.rule
    images = data.load(spec.data)
    planned = plan(spec, len(images.train_labels), len(images.test_labels))
    network = laid_out(build_network(spec, network_arguments(images)))
    images = resident(images, CPU, wants_channels_last(network))
    set_scales(network, rule, images)
    optimizers = slope_optimizers(rule, build_optimizer(spec, planned, network))
    slopes = list(slopes_of(network).values())
    course = Course(steps=planned.epochs * planned.steps)
    network.train()
    for epoch in range(planned.epochs):
        dropout_seed = stream_seed(spec.seed, "dropout", epoch)
        batches = training_batches(spec, planned, images, epoch, wants_channels_last(network))
        for step, (x, y) in enumerate(batches):
            seed_dropout(dropout_seed + step, CPU)
            loss = F.cross_entropy(network(x), y)
            if not math.isfinite(loss.item()):
                course.diverged = True
                return course
            course.losses.append(loss.item())
            network.zero_grad()
            loss.backward()
            if rule.clip:
                nn.utils.clip_grad_norm_(slopes, rule.clip)
            for optimizer in optimizers:
                optimizer.step()
        course.largest_slope = max((float(a.detach().abs().max()) for a in slopes), default=0.0)
    return course


def set_scales(network: nn.Module, rule: Rule, images: data.DataSet) -> None:
    """Give every unit the scale that the rule has for its place in the network."""
    if rule.factor is None:
        return
    units = [module for module in network.modules() if isinstance(module, Splash)]

    def set_scale(unit: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(unit, Splash)
        unit.grad_scale = rule.scale(elements_that_share(unit, inputs[0]))

    hooks = [unit.register_forward_pre_hook(set_scale) for unit in units]
    network.eval()
    with torch.inference_mode():
        network(images.train_images[:2].div(255))
    for hook in hooks:
        hook.remove()


def elements_that_share(unit: Splash, x: Tensor) -> int:
    """How many elements of one sample of x share a slope."""
    return x[0].numel() // math.prod(unit.features)


def slope_optimizers(rule: Rule, usual: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """The usual optimizer, and Adam for the slopes where the rule wants that."""
    if rule.adam is None:
        return [usual]
    slopes = [group["params"] for group in usual.param_groups if group["name"] == "slopes"]
    usual.param_groups = [group for group in usual.param_groups if group["name"] != "slopes"]
    return [usual, torch.optim.Adam(slopes[0], lr=rule.adam)]


# --- results ----------------------------------------------------------------------------------


def records(path: Path) -> list[dict[str, Any]]:
    """The runs of a results file; the lines that tell of a session are left out."""
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text().splitlines() if line]
    return [line for line in lines if "rule" in line]


def work_off(jobs: Iterable[Job], path: Path) -> None:
    """Do what the file doesn't have yet, and append it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    done = {json.dumps(_key_of(record), sort_keys=True) for record in records(path)}
    missing = [job for job in jobs if json.dumps(job.key(), sort_keys=True) not in done]
    if not missing:
        return
    machine = {key: value for key, value in describe_machine().items() if key != "host"}
    append(path, {"session": now(), "command": shlex.join(sys.argv), **machine})
    for number, job in enumerate(missing, 1):
        began = time.perf_counter()
        with own_settings(CPU, 1):
            course = follow(job)
        summary = course.summary(time.perf_counter() - began)
        append(path, {**job.key(), **summary})
        print(f"{number}/{len(missing)}  {label(job)}  {verdict(summary)}", flush=True)


def append(path: Path, record: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")


def _key_of(record: dict[str, Any]) -> dict[str, Any]:
    return {name: record[name] for name in ("study", "rule", "spec")}


def label(job: Job) -> str:
    shown = job.spec.model_dump(include={"model", "seed", "optimizer", "lr"}, exclude_defaults=True)
    return " ".join([job.study, job.rule.name, *map(str, shown.values())])


def verdict(summary: dict[str, Any]) -> str:
    if summary["diverged_at"] is not None:
        return f"not finite after {summary['diverged_at']} steps"
    return f"{summary['second_half']:.4f}  ({summary['seconds']:.0f} s)"


# --- tables -----------------------------------------------------------------------------------


def tables(runs: Sequence[dict[str, Any]]) -> str:
    """All results as the tables of docs/slopes.md, one a study."""
    there = {run["study"] for run in runs}
    by_rule = ("compare", "threefold", "threefold by channel", "epochs")
    by_sharing = ("stability", "longer")
    return "\n\n".join(
        [
            *(_by_rule(runs, study) for study in by_rule if study in there),
            *(_by_sharing(runs, study) for study in by_sharing if study in there),
        ]
    )


def _by_rule(runs: Sequence[dict[str, Any]], study: str) -> str:
    """A row for each rule, a column for each network."""
    own = [run for run in runs if run["study"] == study]
    models = [model for model in TRIED if any(_model(run) == model for run in own)]
    rows = [[study, *models]]

    def there(rule: str, model: str) -> list[dict[str, Any]]:
        return [run for run in own if run["rule"] == rule and _model(run) == model]

    for rule in dict.fromkeys([*(rule.name for rule in RULES), DEFAULT.name]):
        found = [(there(rule, model), there(RELU.name, model)) for model in models]
        cells = [cell(runs) + beside(runs, relu) for runs, relu in found]
        rows += [[rule, *cells]] if any(cells) else []
    return _table(rows)


def beside(runs: Sequence[dict[str, Any]], relu: Sequence[dict[str, Any]]) -> str:
    """The mean difference to ReLU at the same seeds, if there are several, and its spread."""
    losses = {run["spec"].get("seed", 0): run["second_half"] for run in relu}
    pairs = [(run["second_half"], losses.get(run["spec"].get("seed", 0))) for run in runs]
    gaps = [ours - theirs for ours, theirs in pairs if ours is not None and theirs is not None]
    if len(gaps) < 2 or runs == relu:
        return ""
    return f"; {statistics.fmean(gaps):+.3f} ± {statistics.stdev(gaps):.3f}"


def _by_sharing(runs: Sequence[dict[str, Any]], study: str) -> str:
    """A row for each network, optimizer and learning rate; a column for ReLU and each sharing."""
    own = [run for run in runs if run["study"] == study]
    columns = {"relu": ("relu", "layer"), **{s: ("default", s) for s in SHARES}}
    rows = [[study, "optimizer", "learning rate", *columns]]
    for model, optimizer, times in product(TRIED, RATES, (1, 3)):
        lr = times * RATES[optimizer][model]
        here = [
            run
            for run in own
            if _model(run) == model
            and run["spec"].get("optimizer", "sgd") == optimizer
            and math.isclose(run["spec"]["lr"], lr)
        ]
        cells = [
            cell([run for run in here if (run["rule"], _share(run)) == column])
            for column in columns.values()
        ]
        rows += [[model, optimizer, f"{lr:g}", *cells]] if any(cells) else []
    return _table(rows)


def cell(runs: Sequence[dict[str, Any]]) -> str:
    """Mean loss over seeds with its spread, or where it ended; nothing if there is nothing."""
    ends = [run["diverged_at"] for run in runs if run["diverged_at"] is not None]
    losses = [run["second_half"] for run in runs if run["diverged_at"] is None]
    said = []
    if losses:
        spread = f" ± {statistics.stdev(losses):.3f} ({len(losses)})" if len(losses) > 1 else ""
        said.append(f"{statistics.fmean(losses):.3f}{spread}")
    if ends:
        said.append("NaN at step " + ", ".join(map(str, sorted(ends))))
    return "; ".join(said)


def _model(run: dict[str, Any]) -> str:
    return str(run["spec"].get("model", "lenet5"))


def _share(run: dict[str, Any]) -> str:
    return str(run["spec"].get("unit_options", {}).get("share", "layer"))


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([head, "|" + "---|" * len(rows[0]), *body])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("studies", nargs="+", choices=[*STUDIES, "tables"])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--only", choices=list(TRIED), help="one network")
    parser.add_argument("--seed", type=int, help="one seed")
    parser.add_argument("--rule", nargs="*", help="some of the rules")
    arguments = parser.parse_args()
    for study in arguments.studies:
        if study == "tables":
            print(tables(records(arguments.results)))
            continue
        jobs = (
            job
            for job in STUDIES[study]()
            if arguments.only in (None, job.spec.model)
            and arguments.seed in (None, job.spec.seed)
            and (arguments.rule is None or job.rule.name in arguments.rule)
        )
        work_off(jobs, arguments.results)


if __name__ == "__main__":
    main()
