"""Seeing and knowing a shape: its segments, what it resembles, where its inputs fall, its past."""

from splash_units.shape.approximation import Fit as Fit
from splash_units.shape.approximation import fit as fit
from splash_units.shape.approximation import hinges_needed as hinges_needed
from splash_units.shape.classics import Nearest as Nearest
from splash_units.shape.classics import classic_distances as classic_distances
from splash_units.shape.classics import nearest_classic as nearest_classic
from splash_units.shape.drawing import plot as plot
from splash_units.shape.piecewise import Shape as Shape
from splash_units.shape.piecewise import segments as segments
from splash_units.shape.tracking import History as History
from splash_units.shape.tracking import Track as Track
from splash_units.shape.tracking import track as track
from splash_units.shape.visits import Occupancy as Occupancy
from splash_units.shape.visits import occupancy as occupancy
