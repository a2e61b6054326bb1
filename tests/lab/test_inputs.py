"""Histograms of what reaches the units, against counting by hand."""

from itertools import pairwise

import torch
from torch import nn

from splash_units import BatchNormSplash, Splash
from splash_units.lab.inputs import EDGES, input_histograms


def test_every_input_is_counted_where_it_lies():
    x = torch.tensor([[-9.0, -0.9], [0.06, 5.0], [0.07, 0.2]])
    network = nn.Sequential(Splash(), nn.Flatten(), Splash())
    counts = input_histograms(network, x)
    assert list(counts) == ["0", "2"]
    for histogram, seen in ((counts["0"], x), (counts["2"], network[0](x).detach())):
        inside = seen.flatten().clamp(-4, 4)
        expected = [
            int(((inside >= low) & ((inside < high) | (high == 4))).sum())
            for low, high in pairwise(EDGES.tolist())
        ]
        assert histogram.tolist() == expected


def test_a_unit_behind_batch_norm_is_asked_what_its_shape_sees():
    unit = BatchNormSplash(1).eval()
    unit.running_mean.fill_(10.0)
    counts = input_histograms(nn.Sequential(unit), torch.full((5, 1), 10.55))
    (place,) = counts["0"].nonzero().flatten().tolist()
    assert EDGES[place] <= 0.55 < EDGES[place + 1]
    assert counts["0"].sum() == 5


def test_a_network_without_units_has_none_and_modes_stay():
    assert input_histograms(nn.Sequential(nn.ReLU()), torch.ones(2, 2)) == {}
    network = nn.Sequential(Splash()).train()
    input_histograms(network, torch.ones(2, 2))
    assert network.training
