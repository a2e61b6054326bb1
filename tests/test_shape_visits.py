"""Occupancy: every input is counted once, on its segment, and the network is left as it was."""

import copy
import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from splash_units import BatchNormSplash, Splash
from splash_units.shape import occupancy, segments

BATCH = torch.tensor([[-3.0, -2.25, -1.5, -0.5], [0.5, 1.5, 2.25, 3.0]])


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 6),
        nn.BatchNorm1d(6),
        Splash(),
        nn.Dropout(0.5),
        nn.Sequential(nn.Linear(6, 5), Splash(3, share="channel", features=5)),
    )


def data(batches: int = 3, size: int = 32) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(size, 4, generator=generator), torch.zeros(size)) for _ in range(batches)]


def state_and_modes(model: nn.Module) -> tuple[dict[str, Tensor], list[bool]]:
    return copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]


def assert_untouched(model: nn.Module, before: tuple[dict[str, Tensor], list[bool]]) -> None:
    state, modes = state_and_modes(model)
    assert all(torch.equal(value, before[0][name]) for name, value in state.items())
    assert modes == before[1]
    assert not any(m._forward_pre_hooks for m in model.modules())


# --- counts -----------------------------------------------------------------------------------


def test_one_input_a_segment() -> None:
    (visits,) = occupancy(Splash(), BATCH).values()
    assert visits.counts.tolist() == [1] * 8
    assert visits.fractions.tolist() == [0.125] * 8
    assert visits.total == 8
    assert visits.dead_segments == ()


def test_hinges_belong_to_the_right_and_infinities_to_the_ends() -> None:
    x = torch.tensor([-math.inf, -2.5, -2.0, -1.0, -0.0, 0.0, 1.0, 2.0, 2.5, math.inf])
    (visits,) = occupancy(Splash(), x).values()
    assert visits.counts.tolist() == [1, 1, 1, 1, 2, 1, 1, 2]


def test_nan_falls_on_no_segment() -> None:
    (visits,) = occupancy(Splash(3), torch.tensor([math.nan, 0.5, math.nan])).values()
    assert visits.counts.tolist() == [0, 0, 1, 0]
    assert visits.nans == 2
    assert visits.fractions.tolist() == [0, 0, 1, 0]


def test_counts_agree_with_comparing_one_by_one() -> None:
    model = network().eval()
    batches = data()
    found = occupancy(model, batches)
    x = torch.cat([x for x, _ in batches])
    inputs = {"2": model[:2](x), "4.1": model[4][0](model[:4](x))}
    for name, z in inputs.items():
        edges = [-math.inf, *found[name].shape.breakpoints.tolist(), math.inf]
        for k, (low, high) in enumerate(zip(edges, edges[1:], strict=False)):  # noqa: RUF007
            expected = ((z >= low) & (z < high)).sum(0 if name == "4.1" else (0, 1))
            assert torch.equal(found[name].counts[..., k], expected)


@pytest.mark.parametrize(
    ("options", "shape", "groups_of"),
    [
        ({"share": "channel", "features": 3}, (4, 3, 5), lambda x: x.transpose(0, 1).flatten(1)),
        ({"share": "channel", "features": 3, "dim": -1}, (4, 5, 3), lambda x: x.flatten(0, 1).T),
        ({"share": "unit", "features": (2, 3)}, (7, 2, 3), lambda x: x.flatten(1).T),
    ],
)
def test_groups_are_counted_apart(
    options: dict[str, object], shape: tuple[int, ...], groups_of: Callable[[Tensor], Tensor]
) -> None:
    torch.manual_seed(0)
    x = 2 * torch.randn(shape)
    (visits,) = occupancy(Splash(5, **options), x).values()  # type: ignore[arg-type]
    for row, group in zip(visits.counts.reshape(-1, 6), groups_of(x), strict=True):
        (alone,) = occupancy(Splash(5), group).values()
        assert torch.equal(row, alone.counts)
    assert visits.counts.shape == (*visits.shape.groups, 6)


@pytest.mark.filterwarnings("error")
def test_channels_last_and_other_strides() -> None:
    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    unit = Splash(share="channel", features=3)
    (strided,) = occupancy(unit, x).values()
    (plain,) = occupancy(unit, x.contiguous()).values()
    assert torch.equal(strided.counts, plain.counts)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_every_dtype(dtype: torch.dtype) -> None:
    (visits,) = occupancy(Splash(), BATCH.to(dtype)).values()
    assert visits.counts.tolist() == [1] * 8


def test_dead_segments_have_names() -> None:
    (visits,) = occupancy(Splash(3), torch.tensor([-0.5, 0.5, 0.6])).values()
    assert visits.dead.tolist() == [True, False, False, True]
    assert visits.dead_segments == ("(-inf, -1)", "[1, inf)")
    unit = Splash(3, share="channel", features=2)
    (visits,) = occupancy(unit, torch.tensor([[-0.5, 0.5], [0.6, 2.0], [7.0, -3.0]])).values()
    assert visits.dead_segments == ("0: (-inf, -1)", "1: [-1, 0)")
    assert str(visits) == "6 inputs, 2 dead of 8"


def test_a_table_of_shares() -> None:
    (visits,) = occupancy(Splash(3), torch.tensor([-2.0, -0.5, 0.5, 0.6])).values()
    assert str(visits).splitlines() == [
        "(-inf, -1)   25.000 %",
        "[-1, 0)      25.000 %",
        "[0, 1)       50.000 %",
        "[1, inf)      0.000 %",
    ]


# --- networks and batches ---------------------------------------------------------------------


def test_names_are_qualified() -> None:
    found = occupancy(network(), data())
    assert list(found) == ["2", "4.1"]
    assert torch.equal(found["4.1"].shape.slopes, segments(network()[4][1]).slopes)
    assert found["2"].total == 3 * 32 * 6


def test_a_unit_in_two_places_counts_both() -> None:
    tied = Splash()
    model = nn.Sequential(tied, nn.Linear(4, 2), tied)
    (visits,) = occupancy(model, BATCH).values()
    assert visits.total == 8 + 4


def test_a_unit_that_is_never_reached_has_no_fractions() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = Splash(), Splash()

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x=x)  # by keyword, too

    found = occupancy(Half(), BATCH)
    assert found["used"].total == 8
    assert found["spare"].total == 0
    assert found["spare"].fractions.isnan().all()


def test_batches_in_every_form() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = Splash()

        def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
            return self.act(x * scale)

    model = Scaled()

    def counted(batches: object, **options: object) -> list[int]:
        return occupancy(model, batches, **options)["act"].counts.tolist()  # type: ignore

    def generated() -> Iterator[Tensor]:
        yield from BATCH

    once = [1] * 8
    assert counted(BATCH) == counted([BATCH]) == counted([[BATCH, "label"]]) == once
    assert counted(generated()) == once
    assert counted([{"x": BATCH, "scale": 1.0}]) == once
    assert counted([{"x": BATCH, "scale": 0.0}]) == [0, 0, 0, 0, 8, 0, 0, 0]
    assert counted([("label", BATCH)], forward=lambda m, batch: m(batch[1])) == once
    with pytest.raises(TypeError, match="got str"):
        counted(["no tensor"])


@pytest.mark.parametrize("nested", [False, True])
def test_compiled_networks_are_seen_into(nested: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 4), Splash()).eval()
    (expected,) = occupancy(model, BATCH).values()
    # The eager backend skips code generation; what it has traced before still has no hooks.
    compiled = torch.compile(model, backend="eager")
    network = nn.Sequential(compiled) if nested else compiled
    with torch.no_grad():
        network(BATCH)  # as evaluation would
    found = occupancy(network, BATCH)
    assert list(found) == ["0.1" if nested else "1"]
    assert torch.equal(next(iter(found.values())).counts, expected.counts)


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_units_that_normalise_count_what_they_have_normalised(running: bool, affine: bool) -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(3, track_running_stats=running, affine=affine, eps=0.1)
    x = 5 + 4 * torch.randn(8, 3, 5, 5)
    if affine:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    norm(x)
    unit = BatchNormSplash.from_batch_norm(norm)
    before = state_and_modes(unit)
    (apart,) = occupancy(nn.Sequential(norm, Splash()), x).values()
    (fused,) = occupancy(unit, x).values()
    assert_untouched(unit, before)
    assert torch.equal(fused.counts, apart.counts)
    (raw,) = occupancy(Splash(), x).values()
    assert not torch.equal(fused.counts, raw.counts)


# --- nothing changes --------------------------------------------------------------------------


def test_the_network_is_left_as_it_was() -> None:
    model = network()
    model[3].eval()  # a mode of its own
    before = state_and_modes(model)
    first, second = occupancy(model, data()), occupancy(model, data())
    assert_untouched(model, before)
    assert all(torch.equal(first[n].counts, second[n].counts) for n in first)  # no dropout


def test_the_network_is_left_as_it_was_after_an_error() -> None:
    model = network()
    before = state_and_modes(model)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        occupancy(model, [data()[0], torch.zeros(2, 3)])
    assert_untouched(model, before)


def test_networks_without_units() -> None:
    with pytest.raises(ValueError, match=r"Sequential has no SPLASH units.*convert"):
        occupancy(nn.Sequential(nn.ReLU()), BATCH)
    with pytest.raises(TypeError, match="got dict"):
        occupancy({}, BATCH)  # type: ignore[arg-type]
