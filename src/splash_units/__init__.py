"""SPLASH units: learnable piecewise-linear activations at the price of ReLU."""

from splash_units.convert import convert as convert
from splash_units.convert import fold as fold
from splash_units.convert import fuse as fuse
from splash_units.convert import parameter_groups as parameter_groups
from splash_units.functional import splash as splash
from splash_units.shape import fit as fit
from splash_units.shape import occupancy as occupancy
from splash_units.shape import plot as plot
from splash_units.shape import segments as segments
from splash_units.shape import track as track
from splash_units.unit import BatchNormSplash as BatchNormSplash
from splash_units.unit import Splash as Splash
from splash_units.unit import freeze_shapes as freeze_shapes

__version__ = "0.1.0"
