"""The page on conversion: its code runs, and its figures are what the code gives."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from splash_units.convert import FITTED, convert

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "convert.md").read_text(encoding="utf-8")


def test_every_block_runs_after_the_one_before(capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    names: dict[str, object] = {"__name__": "page"}
    for block in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL):
        exec(compile(block, "network.py", "exec"), names)
    printed = capsys.readouterr().out
    (report,) = re.findall(r"```\n(changed.*?)```", PAGE, flags=re.DOTALL)
    assert report in printed
    rows = [line.split() for line in printed.splitlines()[-3:]]
    errors, differences = ([float(row[i]) for row in rows] for i in (1, 2))
    assert errors == sorted(errors, reverse=True)
    assert differences == sorted(differences, reverse=True)


@pytest.mark.parametrize("kind", FITTED)
def test_errors_in_the_table(kind: type[nn.Module]) -> None:
    _, report = convert(kind(), from_=FITTED, return_report=True)
    row = re.search(rf"^\|.*`{kind.__name__}`.*\| ([\d.]+) \|$", PAGE, flags=re.MULTILINE)
    assert row is not None
    assert f"{report.largest_error:.3f}" == row[1]


def test_pictures_are_there_and_small() -> None:
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", PAGE)
    assert pictures == ["pictures/finetuned.png", "pictures/fits.png"]
    assert all((DOCS / picture).stat().st_size < 150_000 for picture in pictures)
