"""Export a network with SPLASH units to ONNX, and run it in onnxruntime with any batch size.

pip install "splash-units[onnx]"
python examples/export_onnx.py network.onnx
"""

import argparse
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from splash_units import convert, fold


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.classes = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.classes(F.relu(self.norm(self.conv(x))).mean((2, 3)))


def with_learned_shapes() -> nn.Module:
    """A converted network whose units are not ReLU any more, as after training."""
    network = convert(Network(), share="channel", example_inputs=torch.randn(2, 3, 16, 16))
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith(("a_pos", "a_neg")):
                parameter += 0.1 * torch.randn_like(parameter)
    return network.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, nargs="?", default=Path("network.onnx"))
    options = parser.parse_args()
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 - torch.onnx.export needs it
    except ImportError as missing:
        sys.exit(f'{missing.name} is not installed: pip install "splash-units[onnx]"')

    torch.manual_seed(0)
    network = fold(with_learned_shapes())  # slopes become constants
    example = torch.randn(2, 3, 16, 16)
    batch = torch.export.Dim("batch", min=1)
    torch.onnx.export(
        network,
        (example,),
        options.file,
        dynamo=True,
        dynamic_shapes=({0: batch},),
        input_names=["images"],
        output_names=["scores"],
    )

    session = onnxruntime.InferenceSession(options.file, providers=["CPUExecutionProvider"])
    for count in (1, 2, 7):
        images = torch.randn(count, 3, 16, 16)
        (scores,) = session.run(["scores"], {"images": images.numpy()})
        with torch.no_grad():
            off = (network(images) - torch.from_numpy(scores)).abs().max().item()
        print(f"{count} images: off by at most {off:.1e} from torch")


if __name__ == "__main__":
    main()
