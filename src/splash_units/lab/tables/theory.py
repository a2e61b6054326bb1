"""What needs no runs: the families of piecewise-linear functions, and the approximation theorem."""

import math

from splash_units.lab.studies.family import FORMULAS, PARAMETERS
from splash_units.lab.studies.grid import NUMBERS_OF_HINGES
from splash_units.lab.tables.table import Cell, Table, words
from splash_units.lab.theorem import EXAMPLES, INTERVAL, largest_error

HINGES = (3, 7, 15, 31, 63)


def family() -> Table:
    rows = tuple(
        (
            words(name),
            words(formula),
            *(Cell(str(count(s)), count(s)) for s in NUMBERS_OF_HINGES),
        )
        for (name, count), formula in zip(PARAMETERS.items(), FORMULAS, strict=True)
    )
    return Table(
        name="family",
        title="Parameters of a piecewise-linear function with S hinges",
        scale=None,
        columns=("family", "parameters", *(f"S = {s}" for s in NUMBERS_OF_HINGES)),
        rows=rows,
        notes=("The formulas are the paper's. Its caption says N intervals; S + 1 are meant.",),
    )


def approximation() -> Table:
    rows = []
    for name in EXAMPLES:
        errors = [largest_error(name, hinges) for hinges in HINGES]
        first, last = zip((HINGES[0], HINGES[-1]), (errors[0], errors[-1]), strict=True)
        order = math.log(first[1] / last[1]) / math.log((last[0] + 1) / (first[0] + 1))
        cells = (Cell(f"{error:.2e}", error) for error in errors)
        rows.append((words(name), *cells, Cell(f"{order:.1f}", order)))
    return Table(
        name="approximation",
        title=f"Largest error of a SPLASH unit that interpolates a function on {list(INTERVAL)}",
        scale=None,
        columns=("function", *(f"S = {hinges}" for hinges in HINGES), "order"),
        rows=tuple(rows),
        notes=(
            "The theorem promises that the error falls below any bound as S grows. Order q: the "
            "error falls like (S + 1) to the power -q; 2 for functions with a bounded second "
            "derivative, 1/2 for one that is only as smooth as a square root.",
        ),
    )
