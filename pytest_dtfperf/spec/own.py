"""Models of whoever tests: `train(model=small_cnn)`. What each is called, and how its code goes to tasks. docs/own-models.md

A model is known by the name that Python imports it by, `my_models.small_cnn`, and this is its `Spec.model`. Names of ours have
no dot that an identifier follows, so that none can be taken for the other.
"""

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_dtfperf.errors import SpecError, shown
from pytest_dtfperf.plain import Plain
from pytest_dtfperf.spec.tables import MODELS, Model

LAYERS = "layers"  # a `Network` made of `Layers`: computed in any format, counted without TensorFlow
TENSORFLOW = "tensorflow"  # a Keras model, or a function of tensors: what it is made of only TensorFlow can tell
KINDS = (LAYERS, TENSORFLOW)

# What a test that says nothing of it gets, where that is not as of models of ours: a loss of Keras' has its own regularisation.
USUAL: Mapping[str, Mapping[str, Any]] = {LAYERS: {}, TENSORFLOW: {"weight_decay": 0.0, "data_format": "NHWC"}}

BATCH_SIZE = 32  # as in Keras, unless the test says another
# Of an order, which a task reads from a socket that holds some 200 KiB. Python packs to a quarter of its size.
MOST_PACKED = 96 << 10

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class OwnModel(Plain):
    """A model that no table has."""

    module: str
    attribute: str  # within the module; of something nested with dots
    kind: str  # of KINDS
    packed: str = ""  # its module with what that imports, if it travels; empty: it belongs to a package that is installed
    package: str | None = None  # which one that is: "my-models 1.0"

    @property
    def name(self) -> str:
        return f"{self.module}.{self.attribute}"

    @property
    def sources(self) -> Mapping[str, str]:
        """Path below the folder that Python finds the module in, to text."""
        return unpacked(self.packed) if self.packed else {}

    @property
    def digest(self) -> str:
        """Of its code, as far as that travels."""
        return hashlib.sha256(self.packed.encode()).hexdigest()


_known: dict[str, OwnModel] = {}
_of_earlier_sessions: set[str] = set()


def begin_session() -> None:
    """Whatever is known by now may have been edited since."""
    _of_earlier_sessions.update(_known)


def add(model: OwnModel) -> None:
    """Let its name be known in this process, with the code that it has now: what is edited later is for the next session.

    Raises `SpecError` where an installed package has a model of that name.
    """
    if model.name in _known and model.name not in _of_earlier_sessions:
        return
    _of_earlier_sessions.discard(model.name)
    if model.name in MODELS and model.name not in _known:
        raise SpecError(f"train(): {model.name} is the name of an installed package's model, too: give yours another one")
    _known[model.name] = model
    MODELS.data[model.name] = Model(f"{model.module}:{model.attribute}", batch_size=BATCH_SIZE, data=())


def find(name: str) -> OwnModel | None:
    """What was added to this process by that name."""
    return _known.get(name)


def is_name(name: str) -> bool:
    """Whether an own model may be called so. Records may tell of some that nobody has here any more."""
    return bool(_NAME.fullmatch(name))


def check_name(name: object) -> None:
    """Raise `SpecError` if no own model can be called so."""
    if not isinstance(name, str) or not is_name(name):
        raise SpecError(
            f"model={shown(name)} is no name of an own model: that is a module's with the model's, a.dot.between, of "
            "the letters a to z and A to Z, digits and underscores"
        )


def packed(sources: Mapping[str, str]) -> str:
    """As it stands in an order: the same words for the same sources."""
    return base64.b85encode(zlib.compress(json.dumps(sources, sort_keys=True).encode(), 9)).decode()


def unpacked(text: str) -> dict[str, str]:
    found: dict[str, str] = json.loads(zlib.decompress(base64.b85decode(text)))
    return found
