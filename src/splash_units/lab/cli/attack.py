"""`splash attack`: attacks on the network of a run, or on a user's own."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from splash_units.lab import budgets
from splash_units.lab.cli.terminal import (
    FAILED,
    INTERRUPTED,
    StoreOption,
    a_folder,
    complain,
    out,
    percent,
    user_errors,
)
from splash_units.lab.cli.train import parse_value
from splash_units.lab.findings import Finding
from splash_units.lab.spec import AttackSpec, TrainSpec, describe, unknown
from splash_units.lab.store import Store

if TYPE_CHECKING:
    from splash_units.lab.robustness.own import Own

# One attack to be done: its name, its options, and on how many images.
Wanted = tuple[str, dict[str, Any], int]

FEW = 3
NAMES = "noise, fgsm, pgd, apgd, square, cw, boundary, pixels, worst_case, autoattack"


def attack(
    run: Annotated[
        str | None, typer.Argument(help="The beginning of a run's name: see splash status.")
    ] = None,
    attacks: Annotated[
        str, typer.Option("--attack", metavar="NAME[,NAME]", help=f"{NAMES}; or all but the last.")
    ] = "all",
    eps: Annotated[
        str | None,
        typer.Option(
            metavar="E[,E]", help="Linf budgets, of images in [0, 1]. [dim](0.02 and others)[/dim]"
        ),
    ] = None,
    k: Annotated[
        str | None, typer.Option(metavar="K[,K]", help="Pixels to change. [dim](1,3,5)[/dim]")
    ] = None,
    images: Annotated[
        str | None,
        typer.Option(
            metavar="N|FILE.npz",
            help="How many test images; or, with --model, a file with arrays images and labels.",
        ),
    ] = None,
    choose: Annotated[
        str, typer.Option(help="Draw among the images that are right, or among all.")
    ] = "right",
    scale: Annotated[
        str | None,
        typer.Option(help="What attacks may spend: smoke, short or paper. [dim](the run's)[/dim]"),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="An option of the attack: --set steps=40."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Fixes the draw of the images and all noise.")] = 0,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FACTORY", help="A network of your own, instead of a run's."),
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Its weights, .safetensors.")
    ] = None,
    layout: Annotated[
        str, typer.Option(help="How the images of your file lie: nchw, nhwc or auto.")
    ] = "auto",
    output: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="Where results on your own network go.", callback=a_folder
        ),
    ] = Path("attacks"),
    store: StoreOption = Path("runs"),
    checks: Annotated[bool, typer.Option(help="Run the sanity checks, too.")] = True,
    resume: Annotated[
        bool,
        typer.Option(
            help="Go on where an earlier try stopped, and take results that are there; "
            "--no-resume begins anew."
        ),
    ] = True,
    chunk_size: Annotated[
        int | None,
        typer.Option(min=1, help="Images between two saves and in memory; else a minute's worth."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
) -> None:
    """Attack a trained network, and say what was counted and whether it can be trusted.

    Results lie in the run's folder. What is there is shown; what was stopped goes on.

    What --attack all does, and may spend at the scales smoke, short, paper:
    noise, fgsm (from a random start): at 0.02, 0.04 and 0.06
    pgd, apgd: at 0.02, with 5, 20, 40 steps; 5, 30, 100
    square: at 0.02, with 20, 500, 5000 queries
    cw: 5 x 20, 5 x 100, 7 x 1000 steps; boundary: 50, 1000, 6000
    pixels: 1, 3 and 5, with 20 x 2, 100 x 10, 400 x 40 candidates, base=random
    worst_case: fgsm, apgd on two losses, square, as above
    on 16, 200 (the slow ones 100), 1000 images.

    Example: splash attack 3f2a --attack fgsm --eps 0.02,0.04,0.06 --images 1000
    """
    common = {
        "device": device,
        "threads": threads,
        "again": not resume,
        "progress": True,
        "check": checks,
        "chunk_size": chunk_size,
    }
    with user_errors():
        if choose not in ("right", "all"):
            raise ValueError(f"--choose {choose!r}: allowed are right and all")
        lists = {"eps": numbers("--eps", eps, float), "k": numbers("--k", k, int)}
        chosen = {"choose": choose, "seed": seed}
        if model is not None:
            if run is not None:
                raise ValueError("give a run or --model, not both")
            own = _own(model, weights, images, layout)
            wanted = _fit(plan(attacks, scale or "short", lists, settings or [], None), own)
            do = _on_own(own, output, chosen, common)
        else:
            if run is None:
                raise ValueError("name a run (see splash status), or a network with --model")
            runs = Store(store)
            train = _spec_of(runs, run)
            count = _count(images)
            wanted = plan(attacks, scale or train.scale, lists, settings or [], count)
            do = _on_run(runs, train, chosen, common)
            out.print(f"[bold]{describe(train)}[/bold]")
    show_attacks(_follow(wanted, do), detailed=True)


def plan(
    attacks: str,
    scale: str,
    lists: dict[str, list[Any] | None],
    settings: Sequence[str],
    images: int | None,
) -> list[Wanted]:
    """What a command line asks for: the scale's budgets, with what it says instead.

    A setting of null takes back what the scale says: the attack's own default holds.
    """
    from splash_units.lab.robustness import ATTACKS, check_attack

    found: list[Wanted] = []
    used: set[str] = set()
    values = dict(_pair(setting) for setting in settings)
    battery = budgets.battery(scale)
    names = list(dict.fromkeys(name for name, _, _ in battery)) if attacks == "all" else None
    for name in names or [name.strip() for name in attacks.split(",")]:
        if name not in ATTACKS:
            raise ValueError(unknown("attack", name, [*ATTACKS, "all"]))
        usual = [item for item in battery if item[0] == name] or [
            (name, *budgets.budget(name, scale))
        ]
        mine = {key: value for key, value in values.items() if key in ATTACKS[name].options}
        for options in _variants([options for _, options, _ in usual], lists):
            used |= options.keys() | mine.keys()
            said = {**options, **mine}
            said = {key: value for key, value in said.items() if value is not None}
            check_attack(name, said)
            found.append((name, said, images or usual[0][2]))
    for key in [*values, *(key for key, wanted in lists.items() if wanted)]:
        if key not in used:
            known = {option for name, _, _ in found for option in ATTACKS[name].options}
            raise ValueError(unknown(f"option of {attacks}", key, known))
    return found


def _variants(usual: list[dict[str, Any]], lists: dict[str, list[Any] | None]) -> list[Any]:
    """The usual options, with each value of a list that was given in the place of theirs."""
    for key, values in lists.items():
        if values and key in usual[0]:
            return [{**usual[0], key: value} for value in values]
    return usual


def numbers(option: str, text: str | None, kind: Callable[[str], Any]) -> list[Any] | None:
    """The numbers of a list with commas."""
    if text is None:
        return None
    try:
        return [kind(word) for word in text.split(",")]
    except ValueError:
        words = "whole numbers" if kind is int else "numbers"
        raise ValueError(f"{option} {text!r}: must be {words}, with commas between them") from None


def _pair(setting: str) -> tuple[str, Any]:
    key, equals, text = setting.partition("=")
    if not equals or not key:
        raise ValueError(f"--set {setting!r}: write it as KEY=VALUE")
    return key.replace("-", "_"), parse_value(text)


def _count(images: str | None) -> int | None:
    if images is None:
        return None
    if not images.isdecimal() or int(images) < 1:
        raise ValueError(f"--images {images!r}: must be a whole number, at least 1")
    return int(images)


def _own(model: str, weights: Path | None, images: str | None, layout: str) -> "Own":
    from splash_units.lab.robustness.own import load_own

    if images is None or images.isdecimal():
        raise ValueError("--model needs --images FILE.npz, with arrays images and labels")
    return load_own(model, weights, Path(images), layout)


def _fit(wanted: list[Wanted], own: "Own") -> list[Wanted]:
    """All images of the file; and without the loss that needs three classes, if there are two."""
    fitted = []
    for name, options, _ in wanted:
        if name == "worst_case" and own.classes < 3:
            options = {**options, "losses": ["cross-entropy"]}
        fitted.append((name, options, len(own.labels)))
    return fitted


def _spec_of(store: Store, beginning: str) -> TrainSpec:
    """The spec of the run that is meant; its name must still be the one that its spec gives."""
    run = store.find(beginning)
    spec = run.spec()
    if store.run(spec) != run:
        raise ValueError(
            f"run {run.id} is of an earlier version, in which its settings meant something else; "
            "train it again to attack it"
        )
    return spec


Do = Callable[[Wanted], tuple[Finding, tuple[str, ...]]]


def _on_run(store: Store, train: TrainSpec, chosen: dict[str, Any], common: dict[str, Any]) -> Do:
    from splash_units.lab import data, robustness

    def do(wanted: Wanted) -> tuple[Finding, tuple[str, ...]]:
        name, options, images = wanted
        spec = AttackSpec(train=train, attack=name, options=options, images=images, **chosen)
        found = robustness.attack(spec, store, **common)
        return found, data.load(train.data).class_names

    return do


def _on_own(own: "Own", output: Path, chosen: dict[str, Any], common: dict[str, Any]) -> Do:
    from splash_units.lab.robustness.own import attack_own

    def do(wanted: Wanted) -> tuple[Finding, tuple[str, ...]]:
        name, options, images = wanted
        asked: dict[str, Any] = {"attack": name, "options": options, "images": images}
        return attack_own(own, output, **asked, **chosen, **common), ()

    return do


def _follow(wanted: Sequence[Wanted], do: Do) -> list[Finding]:
    """Do one after another, and draw each; what is done stays, whatever happens to the next."""
    from splash_units.lab.robustness.picture import draw_examples

    found = []
    try:
        for one in wanted:
            with user_errors():
                finding, classes = do(one)
            picture = finding.folder / "picture.png"
            if not picture.is_file():
                draw_examples(finding, picture, classes=classes)
            found.append(finding)
    except KeyboardInterrupt:
        complain("interrupted; the same command goes on after the last chunk that was saved")
        raise typer.Exit(INTERRUPTED) from None
    except typer.Exit:
        raise
    except Exception as error:
        complain(f"{type(error).__name__}: {error}")
        raise typer.Exit(FAILED) from error
    return found


def show_attacks(found: Sequence[Finding], *, detailed: bool = False) -> None:
    """Attacks as a table, and below it the checks that failed.

    In detail, attacks keep their order, and all checks of a few are told.
    """
    from splash_units.lab.robustness import describe_attack

    table = Table(box=None, pad_edge=False)
    table.add_column("attack")
    for heading in ("fooled", "of right", "in %", "95 % interval", "wrong of all", "median L2"):
        table.add_column(heading, justify="right")
    table.add_column("checks")
    details = []
    for finding in found:
        result = finding.result() or {}
        details.append((describe_attack(result["attack"], result["options"]), result, finding))
    if not detailed:
        details.sort(key=lambda detail: detail[0])
    for words, result, _ in details:
        table.add_row(words, *_numbers(result), _checks(result))
    out.print(table)
    for words, result, finding in details:
        for warning in result["warnings"]:
            out.print(f"[yellow]warning:[/yellow] {words}: {warning}")
        if not detailed:
            continue
        if len(found) <= FEW:
            for check in result["checks"]:
                if check["passed"] is not False:
                    mark = "passed" if check["passed"] else "left out"
                    out.print(f"[dim]{mark}: {words}: {check['name']}: {check['detail']}[/dim]")
        if result["images"] < result["asked"]:
            kind = "right ones" if result["choose"] == "right" else "images"
            out.print(
                f"{words}: there are {result['images']} {kind}, {result['asked']} were asked for"
            )
        out.print(f"[dim]{words}: {finding.folder}, picture.png[/dim]")


def _numbers(result: dict[str, Any]) -> tuple[str, ...]:
    attempts, fooled = result["attempts"], result["fooled"]
    low, high = (100 * end for end in result["fooled_interval"])
    middle = result["median_l2"]
    return (
        f"{fooled}",
        f"{attempts}",
        percent(fooled / attempts) if attempts else "–",
        f"{low:.1f} to {high:.1f}",
        f"{result['wrong_after']} of {result['images']}",
        "–" if middle is None else f"{middle:.3f}",
    )


def _checks(result: dict[str, Any]) -> str:
    if not result["checked"]:
        return "not run"
    ran = [check for check in result["checks"] if check["passed"] is not None]
    failed = sum(not check["passed"] for check in ran)
    return f"[yellow]{failed} of {len(ran)} failed[/yellow]" if failed else f"{len(ran)} passed"
