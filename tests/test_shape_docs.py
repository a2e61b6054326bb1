"""The page on shapes: its code runs, and its figures are what the code gives."""

import re
from pathlib import Path

import matplotlib
import pytest
import torch

matplotlib.use("Agg")

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "shapes.md").read_text(encoding="utf-8")


def test_every_block_runs_after_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL):
        exec(block, names)
    assert {path.name for path in tmp_path.iterdir()} == {
        "shapes.png",
        "evolution.png",
        "shapes.npz",
    }
    tanh = names["tanh"]
    assert f"# {tanh.max_error:.3f} at {abs(tanh.worst_at):.2f}" in PAGE  # type: ignore[attr-defined]
    assert f"# {names['S']}: what the theorem asks for" in PAGE
    assert re.search(rf"# {names['error']:.1g}$", PAGE, flags=re.MULTILINE)


def test_pictures_are_there_and_small() -> None:
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", PAGE)
    assert pictures == ["pictures/shapes.png", "pictures/evolution.png", "pictures/errors.png"]
    assert all((DOCS / picture).stat().st_size < 150_000 for picture in pictures)
