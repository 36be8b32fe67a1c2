"""Properties of the networks from other sources."""

from dataclasses import dataclass

CAFFE = "Caffe's bvlc_googlenet without its auxiliary heads"
TORCHVISION = "torchvision's documentation, num_params and GFLOPS"
KERAS_HUB = "KerasHub's inception_v4_imagenet, timm's inception_v4"
RESNET = "torchvision's documentation, num_params; arXiv 1512.03385, table 1, FLOPs"
PRERESNET = "pytorchcv's preresnet50, 101, 152, and 128 for a batch norm before the first pool; arithmetic as in v1"
CIFAR_RESNET = "arXiv 1512.03385, table 6"
PYTORCHCV = (
    "pytorchcv's resnet20_cifar10, 56 and 110, but for two projections, of 32 x 16 and 64 x 32 weights and 192 of batch norm"
)
PYTORCHCV_V2 = (
    "pytorchcv's preresnet20_cifar10, 56 and 110, but for two projections, and with a batch norm after the first convolution"
)
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
    scales: bool = False  # the source counts a scale for every batch norm, also for those that have none here


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
    "resnet50_v2": Known(25_549_352 + 128, 3.8e9, PRERESNET, multiply_adds_rtol=0.02, scales=True),
    "resnet101_v2": Known(44_541_480 + 128, 7.6e9, PRERESNET, scales=True),
    "resnet152_v2": Known(60_185_128 + 128, 11.3e9, PRERESNET, scales=True),
    "resnet20": Known(272_474 - 2_752, 41.29e6, PYTORCHCV, classes=10, multiply_adds_rtol=0.02),
    "resnet20_v2": Known(272_282 - 2_560 + 32, 41.27e6, PYTORCHCV_V2, classes=10, multiply_adds_rtol=0.02, scales=True),
    "resnet32": Known(0.46e6, None, CIFAR_RESNET, classes=10, parameters_rtol=0.01),
    "resnet32_v2": Known(0.46e6, None, CIFAR_RESNET, classes=10, parameters_rtol=0.01, scales=True),
    "resnet44": Known(0.66e6, None, CIFAR_RESNET, classes=10, parameters_rtol=0.01),
    "resnet44_v2": Known(0.66e6, None, CIFAR_RESNET, classes=10, parameters_rtol=0.01, scales=True),
    "resnet56": Known(855_770 - 2_752, 127.06e6, PYTORCHCV, classes=10, multiply_adds_rtol=0.02),
    "resnet56_v2": Known(855_578 - 2_560 + 32, 127.03e6, PYTORCHCV_V2, classes=10, multiply_adds_rtol=0.02, scales=True),
    "resnet110": Known(1_730_714 - 2_752, 255.70e6, PYTORCHCV, classes=10, multiply_adds_rtol=0.02),
    "resnet110_v2": Known(1_730_522 - 2_560 + 32, 255.68e6, PYTORCHCV_V2, classes=10, multiply_adds_rtol=0.02, scales=True),
    "densenet40_k12": Known(1.0e6, None, DENSENET, classes=10, parameters_rtol=0.02),
    "densenet100_k12": Known(7.0e6, None, DENSENET, classes=10, parameters_rtol=0.01),
    "densenet100_k24": Known(27.2e6, None, DENSENET, classes=10, parameters_rtol=0.01),
}

# Trained parameters and moving averages at the models' own classes, counted in the graphs that tf_cnn_benchmarks itself builds
# (commit 8fb7907, TensorFlow 2.21, `use_tf_layers=False`; with 10 classes on CIFAR-10). Its DenseNets cannot be built.
TF_CNN_BENCHMARKS = {
    "trivial": (4_263_877, 0),
    "lenet": (2_173_353, 0),
    "alexnet": (61_842_345, 0),
    "overfeat": (145_924_969, 0),
    "vgg11": (132_867_433, 0),
    "vgg16": (138_361_641, 0),
    "vgg19": (143_671_337, 0),
    "googlenet": (6_999_577, 0),
    "inception3": (23_819_401, 34_432),
    "inception4": (42_649_769, 63_168),
    "resnet50": (25_559_081, 53_120),
    "resnet50_v1.5": (25_559_081, 53_120),
    "resnet50_v2": (25_536_361, 45_568),
    "resnet101": (44_551_209, 105_344),
    "resnet101_v2": (44_511_081, 97_792),
    "resnet152": (60_194_857, 151_424),
    "resnet152_v2": (60_139_369, 143_872),
    "resnet20": (269_722, 1_376),
    "resnet20_v2": (269_402, 1_408),
    "resnet32": (464_154, 2_272),
    "resnet32_v2": (463_610, 2_304),
    "resnet44": (658_586, 3_168),
    "resnet44_v2": (657_818, 3_200),
    "resnet56": (853_018, 4_064),
    "resnet56_v2": (852_026, 4_096),
    "resnet110": (1_727_962, 8_096),
    "resnet110_v2": (1_725_962, 8_128),
}
