"""Every example runs as a script, in a folder of its own, and says what it should."""

import re
import runpy
import sys
from pathlib import Path

import matplotlib
import pytest

matplotlib.use("Agg")

EXAMPLES = Path(__file__).parents[1] / "examples"
# Warned about inside torch 2.13, by its own exporter.
LEAF_SPEC_INSIDE = "ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning:copyreg"
ARGUMENTS = {
    "convert_and_finetune.py": ["--epochs", "2"],
    "plot_shapes.py": ["pictures", "--epochs", "2"],
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run an example by its name, and return what it prints."""

    def run(name: str) -> str:
        script = str(EXAMPLES / name)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [script, *ARGUMENTS.get(name, [])])
        runpy.run_path(script, run_name="__main__")
        return capsys.readouterr().out

    return run


def test_convert_and_finetune(run) -> None:
    text = run("convert_and_finetune.py")
    errors = dict(re.findall(r"^([\w -]+): +test error ([\d.]+) %", text, flags=re.MULTILINE))
    assert errors["converted"] == errors["trained with ReLU"]
    assert errors["folded"] == errors["fine-tuned"]
    assert float(errors["fine-tuned"]) < 50  # it has learned: guessing is wrong 90 % of the time
    assert "changed: 3" in text
    assert "largest difference of the outputs: 0\n" in text
    assert "folded network's outputs: 0.0\n" in text


@pytest.mark.filterwarnings(LEAF_SPEC_INSIDE)
def test_export_onnx(run) -> None:
    found = re.findall(r"(\d+) images: off by at most (\S+) from torch", run("export_onnx.py"))
    assert [count for count, _ in found] == ["1", "2", "7"]
    assert all(float(off) < 1e-5 for _, off in found)


@pytest.mark.parametrize("name", ["onnxscript", "onnxruntime"])
def test_export_without_the_extra_names_it(
    run, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SystemExit, match=rf'{name} is not installed.*"splash-units\[onnx\]"'):
        run("export_onnx.py")
    assert not list(tmp_path.iterdir())


# An example that gets a test of its own above is not run again.
TESTED = {"convert_and_finetune.py", "export_onnx.py"}
OTHERS = sorted(path.name for path in EXAMPLES.glob("*.py") if path.name not in TESTED)


@pytest.mark.parametrize("name", OTHERS)
def test_every_other_example_runs_and_says_something(run, name: str) -> None:
    assert run(name)
