"""SPLASH units: learnable piecewise-linear activations at the price of ReLU."""

from splash_units.functional import splash as splash
from splash_units.unit import Splash as Splash
from splash_units.unit import freeze_shapes as freeze_shapes

__version__ = "0.1.0"
