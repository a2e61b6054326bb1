"""Pages whose tables come from measured results."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from splash_units.lab.benchmarks.presenting import MISSING


def filled(page: str, texts: Mapping[str, str]) -> str:
    """The page with each text between its `<!-- name -->` and `<!-- /name -->`, the rest as it is.

    Every name must be there once, and no other.
    """
    there = re.findall(r"<!-- ([\w-]+) -->", page)
    if sorted(there) != sorted(texts):
        raise ValueError(f"the page must have {sorted(texts)} in <!-- -->, it has {sorted(there)}")
    for name, text in texts.items():
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        before, _, rest = page.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(f"the page must have {end} after {begin}")
        page = f"{before}{begin}\n{text}\n{end}{after}"
    return page


def commands(results: dict[str, Any], company: Callable[[dict[str, Any], str], str]) -> str:
    """The commands that measured, as a table; `company` joins what each case says of others."""
    lines = [
        "| command | when | commit | cores that others kept busy | arithmetic slowed |",
        "| --- | --- | --- | --- | --- |",
    ]
    for run in results["runs"]:
        commit = (run["commit"] or MISSING)[:7] + ("+" if "+" in (run["commit"] or "") else "")
        by_others = [company(run, of) for of in ("cores_taken_by_others", "arithmetic_slowed")]
        cells = (f"`{run['command']}`", run["when"], commit, *by_others)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
