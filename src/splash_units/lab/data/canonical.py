"""The public data sets as their canonical files: where they lie, whence they come, what they hold.

The digests are SHA-256 of the *uncompressed* contents, so that a recompressed gzip file passes and
a flipped byte does not. CIFAR comes from its binary archives; its pickles are never read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

IDX_LABELS_HEADER = 8  # bytes, before one byte a label
CIFAR_IMAGE = 3 * 32 * 32  # bytes, after its labels


@dataclass(frozen=True)
class CanonicalFile:
    """One file of a data set; `path` is relative to the data folder and without `.gz`."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class CanonicalSet:
    """The training files, then the test files, of one data set, and what they mean.

    `archive` is the tar file that holds them; None when each file is downloaded as `NAME.gz`.
    `mirrors` are tried in order.
    """

    name: str
    format: Literal["idx", "cifar"]
    train_files: tuple[CanonicalFile, ...]
    test_files: tuple[CanonicalFile, ...]
    archive: str | None
    mirrors: tuple[str, ...]
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    label_bytes: int = 1
    label_column: int = 0

    @property
    def files(self) -> tuple[CanonicalFile, ...]:
        return self.train_files + self.test_files

    @property
    def folder(self) -> str:
        return self.files[0].path.partition("/")[0]

    def count(self, files: tuple[CanonicalFile, ...]) -> int:
        """How many images are in some of the files, from the files' known sizes."""
        if self.format == "idx":
            return sum(f.size - IDX_LABELS_HEADER for f in files if "labels" in f.path)
        return sum(f.size for f in files) // (CIFAR_IMAGE + self.label_bytes)


# fmt: off
CIFAR_10_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)
FASHION_CLASSES = (
    "T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag",
    "ankle boot",
)
CIFAR_100_CLASSES = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle",
    "bottle", "bowl", "boy", "bridge", "bus", "butterfly", "camel", "can", "castle",
    "caterpillar", "cattle", "chair", "chimpanzee", "clock", "cloud", "cockroach", "couch",
    "crab", "crocodile", "cup", "dinosaur", "dolphin", "elephant", "flatfish", "forest", "fox",
    "girl", "hamster", "house", "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion",
    "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain", "mouse", "mushroom",
    "oak_tree", "orange", "orchid", "otter", "palm_tree", "pear", "pickup_truck", "pine_tree",
    "plain", "plate", "poppy", "porcupine", "possum", "rabbit", "raccoon", "ray", "road",
    "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk", "skyscraper", "snail", "snake",
    "spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank", "telephone",
    "television", "tiger", "tractor", "train", "trout", "tulip", "turtle", "wardrobe", "whale",
    "willow_tree", "wolf", "woman", "worm",
)
CIFAR_100_COARSE_CLASSES = (
    "aquatic_mammals", "fish", "flowers", "food_containers", "fruit_and_vegetables",
    "household_electrical_devices", "household_furniture", "insects", "large_carnivores",
    "large_man-made_outdoor_things", "large_natural_outdoor_scenes",
    "large_omnivores_and_herbivores", "medium_mammals", "non-insect_invertebrates", "people",
    "reptiles", "small_mammals", "trees", "vehicles_1", "vehicles_2",
)
# fmt: on

MNIST = CanonicalSet(
    name="mnist",
    format="idx",
    train_files=(
        CanonicalFile(
            "mnist/train-images-idx3-ubyte",
            47_040_016,
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        ),
        CanonicalFile(
            "mnist/train-labels-idx1-ubyte",
            60_008,
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        ),
    ),
    test_files=(
        CanonicalFile(
            "mnist/t10k-images-idx3-ubyte",
            7_840_016,
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        ),
        CanonicalFile(
            "mnist/t10k-labels-idx1-ubyte",
            10_008,
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    ),
    archive=None,
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    class_names=tuple("0123456789"),
    mean=(0.1307,),
    std=(0.3081,),
)

FASHION_MNIST = CanonicalSet(
    name="fashion-mnist",
    format="idx",
    train_files=(
        CanonicalFile(
            "fashion-mnist/train-images-idx3-ubyte",
            47_040_016,
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        ),
        CanonicalFile(
            "fashion-mnist/train-labels-idx1-ubyte",
            60_008,
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        ),
    ),
    test_files=(
        CanonicalFile(
            "fashion-mnist/t10k-images-idx3-ubyte",
            7_840_016,
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        ),
        CanonicalFile(
            "fashion-mnist/t10k-labels-idx1-ubyte",
            10_008,
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
    ),
    archive=None,
    mirrors=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    class_names=FASHION_CLASSES,
    mean=(0.2860,),
    std=(0.3530,),
)

CIFAR_10 = CanonicalSet(
    name="cifar-10",
    format="cifar",
    train_files=tuple(
        CanonicalFile(f"cifar-10-batches-bin/data_batch_{number}.bin", 30_730_000, sha256)
        for number, sha256 in enumerate(
            (
                "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
                "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
                "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
                "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
                "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            ),
            start=1,
        )
    ),
    test_files=(
        CanonicalFile(
            "cifar-10-batches-bin/test_batch.bin",
            30_730_000,
            "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        ),
    ),
    archive="cifar-10-binary.tar.gz",
    mirrors=("https://www.cs.toronto.edu/~kriz/",),
    class_names=CIFAR_10_CLASSES,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
)

_CIFAR_100_TRAIN = CanonicalFile(
    "cifar-100-binary/train.bin",
    153_700_000,
    "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
)
_CIFAR_100_TEST = CanonicalFile(
    "cifar-100-binary/test.bin",
    30_740_000,
    "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
)


def _cifar_100(name: str, class_names: tuple[str, ...], label_column: int) -> CanonicalSet:
    return CanonicalSet(
        name=name,
        format="cifar",
        train_files=(_CIFAR_100_TRAIN,),
        test_files=(_CIFAR_100_TEST,),
        archive="cifar-100-binary.tar.gz",
        mirrors=("https://www.cs.toronto.edu/~kriz/",),
        class_names=class_names,
        mean=(0.5071, 0.4867, 0.4408),
        std=(0.2675, 0.2565, 0.2761),
        label_bytes=2,
        label_column=label_column,
    )


CIFAR_100 = _cifar_100("cifar-100", CIFAR_100_CLASSES, label_column=1)
CIFAR_100_COARSE = _cifar_100("cifar-100-coarse", CIFAR_100_COARSE_CLASSES, label_column=0)

CANONICAL = {s.name: s for s in (MNIST, FASHION_MNIST, CIFAR_10, CIFAR_100, CIFAR_100_COARSE)}
