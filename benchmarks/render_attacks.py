"""Write the tables of docs/attacks_speed.md anew from measured results.

python benchmarks/render_attacks.py benchmarks/results/attacks.json
"""

import argparse
from pathlib import Path
from typing import Any

import pages

from splash_units.lab.benchmarks import presenting, record
from splash_units.lab.benchmarks.presenting import MISSING, Rows, seconds_text

PAGE = Path(__file__).parent.parent / "docs" / "attacks_speed.md"

Cases = list[dict[str, Any]]


def speed_table(cases: Cases) -> Rows:
    """How many times as fast ours is as each peer, and what both found."""
    rows = []
    for case in cases:
        for target in case["targets"]:
            ours, peer = (case["contenders"][target[who]] for who in ("contender", "against"))
            if "failure" in peer:
                rows.append((case["name"], target["against"], f"failed: {peer['failure']}"))
                continue
            rows.append(
                (
                    case["name"],
                    target["against"],
                    _times_as_fast(target["measured"]),
                    f"{1 / target['at_most']:.1f}",
                    "yes" if _is_met(target) else "no",
                    f"{_fooled(ours)}; {_fooled(peer)}",
                    f"{_l2(ours)}; {_l2(peer)}",
                )
            )
    columns = (
        "attack", "against", "times as fast", "target", "met", "fooled: ours; theirs",
        "median L2: ours; theirs",
    )  # fmt: skip
    return Rows("speed", columns, tuple(rows))


def cost_table(cases: Cases) -> Rows:
    """What an image costs each contender."""
    rows = [
        (
            case["name"],
            name,
            found.get("failure") or seconds_text(found["median"] / found["images_a_turn"]),
            MISSING if "failure" in found else _fooled(found),
            MISSING if "failure" in found else f"{found['rounds']} x {found['images_a_turn']}",
        )
        for case in cases
        for name, found in case["contenders"].items()
    ]
    return Rows("cost", ("attack", "", "an image", "fooled", "rounds x images"), tuple(rows))


def tally(cases: Cases) -> str:
    """How many targets are met, and which are not."""
    targets = [(case, target) for case in cases for target in case["targets"]]
    missed = [
        f"{case['name']} against {target['against']} "
        f"({1 / target['measured']['median']:.1f} of {1 / target['at_most']:.1f})"
        for case, target in targets
        if target["measured"] is not None and not _is_met(target)
    ]
    said = f"{sum(_is_met(target) for _, target in targets)} of {len(targets)} targets are met."
    return said + (f" Below theirs: {'; '.join(missed)}." if missed else "")


def provenance(results: dict[str, Any]) -> str:
    """The network, commands, machine and versions behind the numbers."""
    latest = results["runs"][-1]
    attacked, versions = latest["attacked"], latest["versions"]
    peers = [name for name in versions if name not in ("splash-units", "numpy", "triton")]
    said = (
        f"{attacked['network']}, trained on {attacked['data']} for {attacked['epochs']} epochs, "
        f"test error {100 * attacked['test_error']:.1f} %; {latest['processor']}, "
        f"{latest['threads']} thread of {latest['cores']} cores; Python {latest['python']}, "
        + ", ".join(f"{name} {versions[name]}" for name in peers)
    )
    return f"{said}.\n\n{pages.commands(results, _company)}"


def _company(run: dict[str, Any], of: str) -> str:
    found = [case.get(of) for case in run["cases"]]
    return ", ".join(MISSING if value is None else f"{value:.2f}" for value in found)


def _times_as_fast(ratio: dict[str, float] | None) -> str:
    """The inverse of the ratio of times, ours to theirs."""
    if ratio is None:
        return MISSING
    return f"{1 / ratio['median']:.2f} ({1 / ratio['upper']:.2f}–{1 / ratio['lower']:.2f})"


def _is_met(target: dict[str, Any]) -> bool:
    return presenting.verdict(target) == "yes"


def _fooled(found: dict[str, Any]) -> str:
    return f"{found['fooled']} of {found['images']}"


def _l2(found: dict[str, Any]) -> str:
    return MISSING if found["median_l2"] is None else f"{found['median_l2']:.3f}"


def filled(page: str, results: dict[str, Any]) -> str:
    """The page with its tables made anew."""
    order = ("FGSM", "PGD", "CW", "boundary", "pixels")
    cases = sorted(
        (case for _, case in record.all_cases(results)),
        key=lambda case: ([case["name"].startswith(name) for name in order].index(True),
                          case["name"]),
    )  # fmt: skip
    texts = {
        "speed": presenting.markdown(speed_table(cases)),
        "cost": presenting.markdown(cost_table(cases)),
        "tally": tally(cases),
        "provenance": provenance(results),
    }
    return pages.filled(page, texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("results", type=Path)
    results = record.load(parser.parse_args().results)
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")


if __name__ == "__main__":
    main()
