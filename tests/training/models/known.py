"""What is known of the networks from elsewhere."""

from dataclasses import dataclass

CAFFE = "Caffe's bvlc_googlenet without its auxiliary heads"
TORCHVISION = "torchvision's documentation, num_params and GFLOPS"
KERAS_HUB = "KerasHub's inception_v4_imagenet, timm's inception_v4"
RESNET = "torchvision's documentation, num_params; arXiv 1512.03385, table 1, FLOPs"
PRERESNET = "pytorchcv's preresnet50, 101, 152, and 128 for a batch norm before the first pool; arithmetic as in v1"
DENSENET = "arXiv 1608.06993, table 2"


@dataclass(frozen=True)
class Known:
    """Trained parameters, and multiply-adds per image forward, of a network for so many classes."""

    parameters: float
    multiply_adds: float | None  # where a source has them
    source: str
    classes: int = 1000
    parameters_rtol: float = 0.0  # how far the source has rounded
    multiply_adds_rtol: float = 0.01
    scales: bool = False  # the source counts a scale per batch norm that is not here


KNOWN = {
    "trivial": Known(4_263_877, 4_258_779, "227 x 227 x 3 + 1, 1 x 4096 + 4096, 4096 x 1001 + 1001", classes=1001),
    "mnist": Known(3_274_634, 13_883_904, "the tutorial's shapes: 832 + 51,264 + 3,212,288 + 10,250", classes=10),
    "mnist_softmax": Known(7_850, 7_840, "784 x 10 + 10", classes=10),
    "lenet": Known(
        1_663_370, 12_273_152, "28 x 28 x 25 x 32, 14 x 14 x 800 x 64, 3136 x 512, 512 x 10 multiply-adds", classes=10
    ),
    "alexnet": Known(
        61_838_248,
        0.84e9,
        "arXiv 1404.5997: 23,296 + 307,392 + 663,936 + 1,327,488 + 884,992 in convolutions, 58,631,144 in dense layers",
    ),
    "overfeat": Known(145e6, 2.81e9, "arXiv 1312.6229, table 3: 145 million, 2810 million connections", parameters_rtol=0.01),
    "vgg11": Known(132_863_336, 7.61e9, TORCHVISION),
    "vgg16": Known(138_357_544, 15.47e9, TORCHVISION),
    "vgg19": Known(143_667_240, 19.63e9, TORCHVISION),
    "googlenet": Known(6_998_552, 1.58e9, CAFFE),
    "inception3": Known(23_817_352, 5.71e9, f"Keras 3, 23,851,784 with moving averages; {TORCHVISION}"),
    "inception4": Known(42_679_816, 12.3e9, KERAS_HUB, scales=True),
    "resnet50": Known(25_557_032, 3.8e9, RESNET, multiply_adds_rtol=0.02),
    "resnet101": Known(44_549_160, 7.6e9, RESNET),
    "resnet152": Known(60_192_808, 11.3e9, RESNET),
    "resnet50_v1.5": Known(25_557_032, 4.09e9, TORCHVISION),
    "resnet101_v1.5": Known(44_549_160, 7.80e9, TORCHVISION),
    "resnet152_v1.5": Known(60_192_808, 11.51e9, TORCHVISION),
    "resnet50_v2": Known(25_549_352 + 128, 3.8e9, PRERESNET, multiply_adds_rtol=0.02),
    "resnet101_v2": Known(44_541_480 + 128, 7.6e9, PRERESNET),
    "resnet152_v2": Known(60_185_128 + 128, 11.3e9, PRERESNET),
    "densenet40_k12": Known(1.0e6, None, DENSENET, classes=10, parameters_rtol=0.02),
    "densenet100_k12": Known(7.0e6, None, DENSENET, classes=10, parameters_rtol=0.01),
}
