"""The paper's figures, and ours beyond it, drawn from a store: one function a figure.

`draw(name, store)` gives an altair chart, which the report shows alive and `save` writes as a
picture. Where the runs that a figure needs are not in the store it raises `Missing`, which says
what is missing and the command that makes it.
"""

from splash_units.lab.figures.catalogue import NAMES, Figure, draw, figure, save
from splash_units.lab.figures.choosing import Missing

__all__ = ["NAMES", "Figure", "Missing", "draw", "figure", "save"]
