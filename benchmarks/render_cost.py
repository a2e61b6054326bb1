"""Write the tables of docs/cost*.md and their picture anew from the results.

python benchmarks/render_cost.py
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import pages

matplotlib.use("Agg")
from matplotlib import pyplot

from splash_units.lab.benchmarks import presenting, record
from splash_units.lab.benchmarks.cases import HINGES, SECTIONS
from splash_units.lab.benchmarks.cases import cases as known_cases
from splash_units.lab.benchmarks.presenting import MISSING, Rows, ratio_text, verdict
from splash_units.lab.benchmarks.published import RELU_SECONDS, SPLASH_SECONDS

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parent.parent / "docs"
PAGES = {
    "cost.md": "cpu-zen5.json",
    "cost_zen4.md": "cpu-zen4.json",
    "cost_xeon.md": "cpu-avx512.json",
    "cost_avx2.md": "cpu-avx2.json",
}
PICTURED = "cost.md"
PICTURE = "pictures/cost_against_hinges"

# Okabe and Ito's colours, which stay apart for colour-blind eyes; markers tell them apart in grey.
OURS, PAPERS = "#0072B2", "#D55E00"
NETWORKS = {"mlp": ("MLP", "o"), "lenet5": ("LeNet5", "s")}

Cases = list[dict[str, Any]]


def unit_table(cases: Cases) -> Rows:
    """splash() against F.relu, by tensor and direction."""
    return _targets_of(cases, "units", lambda t: t["contender"] == "splash()")


def sharing_table(cases: Cases) -> Rows:
    return _targets_of(cases, "units", lambda t: t["contender"] == "Splash, by channel")


def hinge_target_table(cases: Cases) -> Rows:
    return _targets_of(cases, "hinges", lambda t: True)


def batch_norm_table(cases: Cases) -> Rows:
    return _side_by_side(cases, "batchnorm")


def step_table(cases: Cases) -> Rows:
    return _side_by_side(cases, "steps")


def compile_table(cases: Cases) -> Rows:
    return _side_by_side(cases, "compile")


def size_table(cases: Cases) -> Rows:
    return _side_by_side(cases, "sizes")


def others_table(cases: Cases) -> Rows:
    """Other activations: torch's own and learnable ones, forward and backward."""
    names = {
        "(64, 64, 32, 32), forward + backward": "large",
        "(128, 256), forward + backward": "dense",
    }
    ratios: dict[str, dict[str, str]] = {}
    for case in cases:
        plain = case["name"].removesuffix(", learnable units")
        if case["section"] != "units" or plain not in names:
            continue
        for name, found in case["contenders"].items():
            said = found.get("failure") or ratio_text(found["ratio"])
            ratios.setdefault(name, {}).setdefault(names[plain], said)
    saved = _saved(cases)
    rows = [
        (name, by.get("large", MISSING), by.get("dense", MISSING), saved.get(name, MISSING))
        for name, by in ratios.items()
    ]
    columns = ("", "(64, 64, 32, 32)", "(128, 256)", "saved beside x, copies of x")
    return Rows("others", columns, tuple(rows))


def memory_table(cases: Cases) -> Rows:
    """What is kept for backward behind batch norm."""
    found = _one(cases, "memory", lambda name: name.endswith("batch norm"))
    rows = [(name, presenting.bytes_text(c["bytes"])) for name, c in found["contenders"].items()]
    return Rows("memory", ("", "saved beside x"), tuple(rows))


def hinge_table(cases: Cases) -> Rows:
    """Steps and passes against S, with the paper's ratios beside."""
    wanted = [
        ("(64, 64, 32, 32), forward + backward", "(64, 64, 32, 32)"),
        ("(128, 16, 32, 32), forward + backward", "(128, 16, 32, 32)"),
        ("mlp step", "MLP step"),
        ("lenet5 step", "LeNet5 step"),
    ]
    by_name = {case["name"]: case for case in cases if case["section"] == "hinges"}
    rows = []
    for s in HINGES:
        cells = [str(s)]
        for name, _ in wanted:
            case = by_name.get(name, {"contenders": {}, "published_ratios": {}})
            found = case["contenders"].get(f"S = {s}")
            cells.append(MISSING if found is None else ratio_text(found.get("ratio")))
            if name.endswith("step"):
                published = case["published_ratios"].get(f"S = {s}")
                cells.append(MISSING if published is None else f"{published:.2f}")
        rows.append(tuple(cells))
    columns = ["S"]
    for name, title in wanted:
        columns += [title, "paper"] if name.endswith("step") else [title]
    return Rows("hinges", tuple(columns), tuple(rows))


def closest_table(cases: Cases) -> Rows:
    """The targets that were not met, and those that were by less than 5 %, furthest first."""
    close = [
        (target["measured"]["median"] / target["at_most"], case, target)
        for case in cases
        for target in case["targets"]
        if target["at_most"] > 0
        and target["measured"] is not None
        and target["measured"]["median"] > 0.95 * target["at_most"]
    ]
    close.sort(key=lambda row: -row[0])
    rows = [
        (
            f"{case['section']}: {case['name']}",
            f"{target['contender']} against {target['against']}",
            ratio_text(target["measured"]),
            f"{target['at_most']:.2f}",
            verdict(target).partition(",")[0],
        )
        for _, case, target in close
    ]
    return Rows("closest", ("case", "", "ratio", "target, at most", "met"), tuple(rows))


def tally(cases: Cases) -> str:
    """How many targets are met."""
    targets = [target for case in cases for target in case["targets"]]
    met = sum(verdict(target) == "yes" for target in targets)
    others = "Those that are not, and those that are by less than 5 %, furthest first:"
    return f"{met} of {len(targets)} targets are met. {others}"


def provenance(results: dict[str, Any]) -> str:
    """The commands, machine and versions behind the numbers."""
    latest = results["runs"][-1]
    said = (
        f"{latest['processor']}, {latest['cores']} cores, {latest['memory_gb']} GB; "
        f"{latest['threads']} threads; kernel {latest['kernel']}; "
        f"torch {latest['versions']['torch']}, Python {latest['python']}."
    )
    return f"{said}\n\n{pages.commands(results, _company)}"


def _company(run: dict[str, Any], of: str) -> str:
    """The range over a run's timed cases, of those that know."""
    timed = [case for case in run["cases"] if case["measures"] == "seconds"]
    found = [case[of] for case in timed if case.get(of) is not None]
    return f"{min(found):.2f}–{max(found):.2f}" if found else MISSING


def _targets_of(cases: Cases, section: str, wanted: Callable[[dict[str, Any]], bool]) -> Rows:
    rows = [
        (
            case["name"],
            target["contender"],
            target["against"],
            ratio_text(target["measured"]),
            f"{target['at_most']:.2f}",
            verdict(target).partition(",")[0],
        )
        for case in cases
        if case["section"] == section
        for target in case["targets"]
        if wanted(target)
    ]
    return Rows(section, ("tensor", "", "against", "ratio", "target, at most", "met"), tuple(rows))


def _side_by_side(cases: Cases, section: str) -> Rows:
    """One row a case: the yardstick's time, and the others as multiples of it."""
    chosen = [case for case in cases if case["section"] == section]
    others = [name for name in chosen[0]["contenders"] if name != chosen[0]["yardstick"]]
    with_paper = any(case["published_ratios"] for case in chosen)
    rows = []
    for case in chosen:
        yardstick = case["contenders"][case["yardstick"]]
        cells = [case["name"], presenting.seconds_text(yardstick["median"])]
        targets = {target["contender"]: target for target in case["targets"]}
        for name in others:
            found = case["contenders"][name]
            said = found.get("failure") or ratio_text(found["ratio"])
            if name in targets:
                met = verdict(targets[name]).partition(",")[0]
                said += f"; ≤ {targets[name]['at_most']:.2f}: {met}"
            cells.append(said)
        if with_paper:
            published = next(iter(case["published_ratios"].values()), None)
            cells.append(MISSING if published is None else f"{published:.2f}")
        rows.append(tuple(cells))
    columns = ("", chosen[0]["yardstick"], *(f"{name}, ratio" for name in others))
    return Rows(section, (*columns, "paper") if with_paper else columns, tuple(rows))


def _saved(cases: Cases) -> dict[str, str]:
    found = _one(cases, "memory", lambda name: name.endswith("units"))
    copy_of_x = found["contenders"]["F.relu"]["bytes"]  # its output is as large as x
    return {
        name: f"{c['bytes'] / copy_of_x:.3g}" if "bytes" in c else MISSING
        for name, c in found["contenders"].items()
    }


def _one(cases: Cases, section: str, wanted: Callable[[str], bool]) -> dict[str, Any]:
    return next(c for c in cases if c["section"] == section and wanted(c["name"]))


def draw(cases: Cases, stem: Path) -> None:
    """A training step against S, ours and the paper's, as multiples of the same network's ReLU."""
    figure, axes = pyplot.subplots(figsize=(6.0, 3.7), layout="constrained")
    for name, seconds in SPLASH_SECONDS.items():
        title, marker = NETWORKS[name]
        ratios = [value / RELU_SECONDS[name] for value in seconds.values()]
        style = {"marker": marker, "linewidth": 2, "color": PAPERS, "linestyle": "--"}
        axes.plot(papers_hinges(), ratios, **style)
        _label(axes, f"{title}, paper", ratios[-1], PAPERS)

    ours = {name: [_step_ratio(cases, name, s) for s in papers_hinges()] for name in NETWORKS}
    # Ours lie close together: the higher is named above the lines, the lower below.
    for raised, name in enumerate(sorted(ours, key=lambda name: ours[name][-1]["median"])):
        title, marker = NETWORKS[name]
        medians = [ratio["median"] for ratio in ours[name]]
        below = [ratio["median"] - ratio["lower"] for ratio in ours[name]]
        above = [ratio["upper"] - ratio["median"] for ratio in ours[name]]
        style = {"marker": marker, "linewidth": 2, "color": OURS, "capsize": 3}
        axes.errorbar(papers_hinges(), medians, [below, above], **style)
        _label(axes, f"{title}, here", medians[-1], OURS, raised_by=10 if raised else -10)

    axes.axhline(1.0, color="0.35", linewidth=1)
    axes.annotate("ReLU", (4, 1.0), (0, -24), textcoords="offset points", color="0.35", ha="center")
    axes.set(xlabel="hinges S", ylabel="training time, ReLU = 1", xticks=papers_hinges())
    axes.set(xlim=(2.4, 13.4), ylim=(0, 3.4))
    axes.spines[["top", "right"]].set_visible(False)
    for suffix in (".svg", ".png"):
        figure.savefig(stem.with_suffix(suffix), dpi=150, metadata=_metadata(suffix))
    pyplot.close(figure)


def _label(axes: Any, text: str, height: float, colour: str, raised_by: float = 0) -> None:
    """Name a line at its right end, where a legend would have to be looked up."""
    at = (papers_hinges()[-1], height)
    axes.annotate(text, at, (8, raised_by), textcoords="offset points", color=colour, va="center")


def papers_hinges() -> list[int]:
    return list(SPLASH_SECONDS["mlp"])


def _step_ratio(cases: Cases, name: str, num_hinges: int) -> dict[str, float]:
    case = _one(cases, "hinges", lambda found: found == f"{name} step")
    found: dict[str, float] = case["contenders"][f"S = {num_hinges}"]["ratio"]
    return found


def _metadata(suffix: str) -> dict[str, None]:
    """No date: the same results must give the same file."""
    return {"Date": None} if suffix == ".svg" else {}


TABLES = {
    "units": unit_table,
    "sharing": sharing_table,
    "others": others_table,
    "batchnorm": batch_norm_table,
    "steps": step_table,
    "hinges": hinge_table,
    "hinge-targets": hinge_target_table,
    "sizes": size_table,
    "memory": memory_table,
    "compile": compile_table,
    "closest": closest_table,
}


def in_order(results: dict[str, Any]) -> Cases:
    """The cases as `splash bench all` has them, whenever each was measured."""
    place = {(case.section, case.name): i for i, case in enumerate(known_cases(SECTIONS))}
    measured = (case for _, case in record.all_cases(results))
    return sorted(measured, key=lambda case: place.get((case["section"], case["name"]), len(place)))


def filled(page: str, results: dict[str, Any]) -> str:
    """The page with its tables made anew."""
    cases = in_order(results)
    texts = {name: presenting.markdown(table(cases)) for name, table in TABLES.items()}
    texts["provenance"] = provenance(results)
    texts["tally"] = tally(cases)
    return pages.filled(page, texts)


def main() -> None:
    matplotlib.rcParams["svg.hashsalt"] = "splash-units"
    for name, results_name in PAGES.items():
        results, page = record.load(RESULTS / results_name), DOCS / name
        page.write_text(filled(page.read_text(encoding="utf-8"), results), encoding="utf-8")
        if name == PICTURED:
            draw(in_order(results), DOCS / PICTURE)


if __name__ == "__main__":
    main()
