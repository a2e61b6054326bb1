"""From piecewise-linear functions to SPLASH: parameters of each family, and what S hinges can do.

Reproduces the paper's table of families: general 3S + 2, continuous 2S + 2, grounded 2S + 1, with
symmetric hinges S + 1 + floor(S/2), with fixed hinges (SPLASH) S + 1. Beside it the approximation
theorem as numbers: the largest error of a SPLASH unit that interpolates a function, against S. The
theorem needs f(0) = 0 and hinges symmetric about 0, which its statement leaves out.

Cost: none; there is nothing to train.

    splash table family
    splash table approximation
    splash figure families
"""

from collections.abc import Callable, Iterator

from splash_units.lab.spec import AnySpec, Scale
from splash_units.lab.studies.study import Study

#: How many parameters a function with S hinges has, family by family, each within the one before.
PARAMETERS: dict[str, Callable[[int], int]] = {
    "general": lambda s: 3 * s + 2,
    "continuous": lambda s: 2 * s + 2,
    "continuous, grounded": lambda s: 2 * s + 1,
    "continuous, grounded, symmetric hinges": lambda s: s + 1 + s // 2,
    "continuous, grounded, symmetric and fixed hinges (SPLASH)": lambda s: s + 1,
}
FORMULAS = ("3S + 2", "2S + 2", "2S + 1", "S + 1 + floor(S/2)", "S + 1")


def declare(scale: Scale, seed: int) -> Iterator[AnySpec]:
    yield from ()


STUDY = Study(
    name="family",
    title="Families of piecewise-linear functions, and the approximation theorem",
    text=__doc__,
    declare=declare,
    tables=("family", "approximation"),
    figures=("families", "approximation"),
)
