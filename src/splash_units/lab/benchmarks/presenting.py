"""Results as rows of text: the same for the terminal and for the docs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from splash_units.lab.benchmarks.record import Record

MISSING = "–"


@dataclass(frozen=True)
class Rows:
    """A table: a title, columns, and rows of text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def case_rows(case: Record) -> Rows:
    """A case as a table: what each contender took, and as a multiple of the yardstick."""
    of_bytes = case["measures"] == "bytes"
    took = "saved" if of_bytes else "median (10–90 %)"
    columns = ["", took, f"× {case['yardstick']}"]
    columns += ["fooled", "median L2"] if _has_findings(case) else []
    columns += ["target", "met"] if case["targets"] else []
    columns += ["paper"] if case["published_ratios"] else []
    rows = [_row(case, name, found) for name, found in case["contenders"].items()]
    return Rows(f"{case['section']}: {case['name']}", tuple(columns), tuple(rows))


def _row(case: Record, name: str, found: Record) -> tuple[str, ...]:
    if "failure" in found:
        cells = [f"failed: {found['failure']}", MISSING]
    elif case["measures"] == "bytes":
        cells = [bytes_text(found["bytes"]), _bytes_ratio(case, found["bytes"])]
    else:
        spread = f"{seconds_text(found['median'])} ({_range(found)})"
        cells = [spread, ratio_text(found["ratio"])]
    if _has_findings(case):
        cells += _finding_cells(found)
    if case["targets"]:
        cells += _target_cells(case, name)
    if case["published_ratios"]:
        published = case["published_ratios"].get(name)
        cells.append(MISSING if published is None else f"{published:.2f}")
    return (name, *cells)


def _target_cells(case: Record, name: str) -> list[str]:
    own = [target for target in case["targets"] if target["contender"] == name]
    bounds = [
        f"≤ {target['at_most']:.2f}"
        + ("" if target["against"] == case["yardstick"] else f" × {target['against']}")
        for target in own
    ]
    return ["; ".join(bounds), "; ".join(verdict(target) for target in own)]


def _has_findings(case: Record) -> bool:
    return any("fooled" in found for found in case["contenders"].values())


def _finding_cells(found: Record) -> list[str]:
    if "fooled" not in found:
        return [MISSING, MISSING]
    l2 = found["median_l2"]
    return [f"{found['fooled']} of {found['images']}", MISSING if l2 is None else f"{l2:.4f}"]


def verdict(target: Record) -> str:
    """Whether a target is met: yes, no, or not measured."""
    measured = target["measured"]
    if measured is None:
        return MISSING
    return "yes" if measured["median"] <= target["at_most"] else f"no, {measured['median']:.2f}"


def targets_rows(cases: Sequence[Record]) -> Rows:
    """Every target, with the ratio that was measured."""
    rows = [
        (
            f"{case['section']}: {case['name']}",
            target["contender"],
            target["against"],
            f"≤ {target['at_most']:.2f}",
            ratio_text(target["measured"]),
            verdict(target).partition(",")[0],
        )
        for case in cases
        for target in case["targets"]
    ]
    columns = ("case", "contender", "against", "target", "measured (10–90 %)", "met")
    return Rows("targets", columns, tuple(rows))


def ratio_text(ratio: Mapping[str, float] | None) -> str:
    if ratio is None:
        return MISSING
    return f"{ratio['median']:.2f} ({ratio['lower']:.2f}–{ratio['upper']:.2f})"


def seconds_text(seconds: float) -> str:
    """Three digits and a unit that suits the size."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def bytes_text(count: int) -> str:
    return f"{count:,} B" if count < 10_000 else f"{count / 1e6:,.2f} MB"


def _range(found: Record) -> str:
    return f"{seconds_text(found['lower'])}–{seconds_text(found['upper'])}"


def _bytes_ratio(case: Record, count: int) -> str:
    whole = case["contenders"][case["yardstick"]].get("bytes")
    return f"{count / whole:.2f}" if whole else MISSING


def markdown(rows: Rows) -> str:
    """A table as Markdown has it."""
    lines = [rows.columns, tuple("---" for _ in rows.columns), *rows.rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
