"""Own models of `train(model=...)`: their names, the code that is sent, and errors."""

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_dtfperf.errors import SpecError
from pytest_dtfperf.session import Session
from pytest_dtfperf.session.own_models import describe_model, import_model, with_name
from pytest_dtfperf.session.resolve import resolve
from pytest_dtfperf.session.settings import Settings
from pytest_dtfperf.spec import MODELS, Spec, tables
from pytest_dtfperf.training.models.outline import Outline, get_outline, keep_outline
from pytest_dtfperf.training.own import SentCode
from tests.training.own import models

REPOSITORY = Path(__file__).parents[2]
HERE = "tests.training.own.models"


@pytest.fixture(autouse=True)
def model_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove own models of other tests."""
    monkeypatch.setattr(MODELS, "data", dict(MODELS.data))
    monkeypatch.setattr(tables, "_own_models", {})


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder from which Python imports."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write_module(project: Path, name: str, text: str) -> ModuleType:
    path = project / f"{name}.py"
    path.write_text(text)
    __import__(name)
    return sys.modules[name]


NETWORK = """
class Net:
    image_shape, classes, units = (28, 28, 1), 10, 0
    {body}
    def logits(self, net, images):
        return net.dense(net.flatten(images), self.units or self.classes)
"""


def spec_of(model: Any, **wanted: Any) -> Spec:
    device = wanted.pop("device", "cpu")
    return resolve(with_name({"model": model, **wanted}), Settings(), {}, device)


@pytest.mark.parametrize(
    "model, name, kind",
    [
        (models.small_cnn, f"{HERE}.small_cnn", "tensorflow"),
        (models.softmax, f"{HERE}.softmax", "tensorflow"),
        (models.Dense, f"{HERE}.Dense", "layers"),
        (models.HELD, f"{HERE}.HELD", "layers"),
    ],
    ids=["a function", "a function of images", "a class", "an object"],
)
def test_own_model_is_named_by_its_import_path(model: Any, name: str, kind: str) -> None:
    """An own model's spec, key and label have its import path, and the spec is read without the model."""
    spec = spec_of(model)
    assert (spec.model, spec.own_model) == (name, kind)
    assert spec.key.startswith(f"model={name} batch_size=32 ")
    assert spec.label.startswith(f"{name} b32 ")
    tables._own_models.clear()
    del MODELS.data[name]
    assert Spec.from_json(spec.to_json()) == spec


def test_built_in_models_have_no_own_model_name() -> None:
    """No built-in model has a name of the form of own models."""
    assert not [name for name in MODELS.data if tables.is_own_model_name(name)]


def test_imports_of_a_module_are_sent(project: Path) -> None:
    """Modules of the same folder that a model imports are sent, and no installed or unused ones."""
    (project / "kit").mkdir()
    for name, text in {"__init__": "", "blocks": "from . import sizes\n", "sizes": "UNITS = 3\n"}.items():
        (project / f"kit/{name}.py").write_text(text)
    (project / "late.py").write_text("import numpy\n")
    (project / "unused.py").touch()
    module = write_module(project, "mine", "import os, pytest, kit.blocks\ndef cnn():\n    from late import numpy\n")
    found = describe_model(module.cnn)
    assert sorted(found.sources) == ["kit/__init__.py", "kit/blocks.py", "kit/sizes.py", "late.py", "mine.py"]
    assert found.sources["kit/sizes.py"] == "UNITS = 3\n"


def test_namespace_packages_are_sent(project: Path) -> None:
    """Imported modules of a folder without __init__.py are sent, and other folders are not."""
    for folder in ("kit/deep", "wandb/run-1"):
        (project / folder).mkdir(parents=True)
    (project / "kit/deep/blocks.py").write_text("from . import sizes\n")
    (project / "kit/deep/sizes.py").write_text("UNITS = 3\n")
    text = (
        "import kit.deep.blocks\ntry:\n    import wandb.sdk\nexcept ImportError: ...\ndef cnn(): from kit.deep import sizes\n"
    )
    found = describe_model(write_module(project, "mine", text).cnn)
    assert sorted(found.sources) == ["kit/deep/blocks.py", "kit/deep/sizes.py", "mine.py"]


def test_linked_modules_are_sent_by_their_imported_name(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A module or package that is a link is sent by its imported name, with its neighbours."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "version_2").mkdir()
    (elsewhere / "version_2/__init__.py").touch()
    (elsewhere / "version_2/blocks.py").write_text("from . import sizes\ndef cnn(): pass\n")
    (elsewhere / "version_2/sizes.py").touch()
    (elsewhere / "model_2.py").write_text("import beside\nfrom kit.blocks import cnn as other\ndef cnn(): pass\n")
    (project / "beside.py").touch()
    (project / "kit").symlink_to(elsewhere / "version_2")
    (project / "mine.py").symlink_to(elsewhere / "model_2.py")
    mine = __import__("mine")
    package = ["kit/__init__.py", "kit/blocks.py", "kit/sizes.py"]
    assert [(found.name, sorted(found.sources)) for found in map(describe_model, (mine.cnn, mine.other))] == [
        ("mine.cnn", ["beside.py", *package, "mine.py"]),
        ("kit.blocks.cnn", package),
    ]


@pytest.mark.parametrize(
    "source",
    ["# -*- coding: latin-1 -*-\nWORD = '\xfc'\n".encode("latin-1"), b"\xef\xbb\xbfWORD = '\xc3\xbc'\r\n"],
    ids=["another encoding", "a byte order mark"],
)
def test_sources_of_any_encoding_are_sent(project: Path, source: bytes) -> None:
    """A module of any encoding is sent, and has the same values there."""
    (project / "words.py").write_bytes(source)
    (project / "held.py").write_bytes(
        source + b"import words\ndef small(): pass\nclass Made:\n    __call__ = small\nMADE = Made()\n"
    )
    held = __import__("held")
    for model in (held.small, held.MADE):
        found = describe_model(model)
        assert found.module == "held"
        sent = SentCode(found.sources)
        for name in ("held", "words"):
            exec(sent.get_code(name), there := {"__name__": name})
            assert there["WORD"] == "\xfc"


def test_installed_package_is_not_sent() -> None:
    """The code of an installed package is not sent, and its name and version are known."""
    import jsonschema

    found = describe_model(jsonschema.validate)
    assert (found.packed, found.package) == ("", f"jsonschema {metadata.version('jsonschema')}")


def test_network_is_counted_without_tensorflow() -> None:
    """The operations of an own Network are counted in the size of its input, without TensorFlow."""
    code = (
        "import sys; from tests.session.test_own_models import models, spec_of; "
        "from pytest_dtfperf.training.models.outline import get_outline; "
        "assert get_outline(spec_of(models.Dense)).multiply_adds == 7840; "
        "cifar = spec_of(models.Dense, data='cifar10', data_dir='/'); assert get_outline(cifar).multiply_adds == 30720; "
        "assert not {'tensorflow', 'keras'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("device, expected", [("cpu", "NHWC"), ("gpu", "NHWC")])
def test_tensorflow_models_have_nhwc(device: str, expected: str) -> None:
    """Models of TensorFlow have NHWC without weight decay on any device; a Network has NCHW on GPUs."""
    spec = spec_of(models.small_cnn, device=device)
    assert (spec.data_format, spec.weight_decay) == (expected, 0.0)
    assert spec_of(models.Dense, device="gpu").data_format == "NCHW"


def make_local_model() -> Any:
    def cnn() -> None:
        """A model that cannot be imported."""

    return cnn


@pytest.mark.parametrize(
    "model, wanted, words",
    [
        (lambda images: images, {}, "is made within a function, where no task can import it from"),
        (make_local_model(), {}, "is made within a function, where no task can import it from"),
        (models.Fixed(), {}, "is held by no module, so no task can import it"),
        (3, {}, "model=3 is neither a model's name nor a model"),
        (models.small_cnn, {"data_format": "NCHW"}, "is given images in data_format=NHWC, not NCHW"),
        (models.small_cnn, {"command": ["python", "train.py"]}, "a command trains its own model"),
        (
            models.Fixed,
            {"data": "mnist", "data_dir": "/"},
            "looks at images of (8, 8, 3) and tells 5 classes apart, data=mnist has",
        ),
        (models.Misfit, {}, "the layers of tests.training.own.models.Misfit do not fit together: ValueError: "),
        (models.Dense, {"own_model": "layers"}, "unknown argument 'own_model'"),
    ],
    ids=["a lambda", "a local", "an object", "a number", "nchw", "a command", "an input", "layers", "the field"],
)
def test_invalid_own_model_is_refused(model: Any, wanted: dict[str, Any], words: str) -> None:
    """An own model that cannot be imported by a task is refused in one line."""
    with pytest.raises(SpecError) as refused:
        spec_of(model, **wanted)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "body, words",
    [
        ("image_shape = (28, 28)", "has image_shape = (28, 28): it must be (height, width, channels), three whole numbers"),
        ("image_shape = 28", "has image_shape = 28: it must be (height, width, channels), three whole numbers"),
        ("image_shape = (28.5, 28, 1)", "has image_shape = (28.5, 28, 1): it must be"),
        ("image_shape = (0, 28, 1)", "has image_shape = (0, 28, 1): it must be"),
        ("classes = float('nan')", "has classes = nan: it must be a whole number, 1 or more"),
        ("classes = '10'", "has classes = '10': it must be"),
        ("classes = 0", "has classes = 0: it must be"),
        ("units = 7", "has classes = 10, but makes (7,) of an image: logits are one number for each class, (10,)"),
    ],
)
def test_invalid_network_is_refused(project: Path, body: str, words: str) -> None:
    """A Network with invalid shapes, classes or layers is refused in one line."""
    module = write_module(project, "mine", NETWORK.format(body=body))
    with pytest.raises(SpecError, match=rf"^(train\(\): )?mine\.Net {re.escape(words)}.*$"):
        spec_of(module.Net)


def test_model_that_is_not_its_modules_name_is_refused(project: Path) -> None:
    """A function that is not what its module has by its name is refused."""
    module = write_module(project, "twice", "def cnn(): pass\nfirst = cnn\ndef cnn(): pass\n")
    with pytest.raises(SpecError, match=r"is not what twice\.cnn is"):
        describe_model(module.first)


@pytest.mark.parametrize(
    "text, words",
    [
        ("import no_such_thing\n", "broken cannot be imported: there is no module no_such_thing$"),
        ("raise OSError('no weights here')\n", "broken cannot be imported: OSError: no weights here$"),
        ("import sys\nsys.exit('for Linux alone')\n", "broken cannot be imported: SystemExit: for Linux alone$"),
        ("def cnn(: pass\n", "broken cannot be imported: SyntaxError: "),
    ],
)
def test_failing_import_is_one_line(project: Path, text: str, words: str) -> None:
    """A model of a command line that cannot be imported is refused with the reason."""
    (project / "broken.py").write_text(text)
    with pytest.raises(SpecError, match=words):
        import_model("broken:cnn")


def test_missing_keras_backend_is_named(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the backend of Keras in KERAS_BACKEND is missing, the error names it."""
    (project / "broken.py").write_text("import no_such_backend\n")
    monkeypatch.setenv("KERAS_BACKEND", "no_such_backend")
    words = "there is no module no_such_backend, the backend of Keras in KERAS_BACKEND: it must be tensorflow$"
    with pytest.raises(SpecError, match=words):
        import_model("broken:cnn")


@pytest.mark.parametrize(
    "model, wanted, expected",
    [
        (models.small_cnn, {}, ""),
        (models.small_cnn, {"weight_decay": 4e-5}, " weight_decay=4e-05"),
        (models.Dense, {}, ""),
        (models.Dense, {"weight_decay": 0.0}, " weight_decay=0.0"),
    ],
    ids=["Keras", "Keras and more", "layers", "layers without"],
)
def test_label_has_changed_weight_decay(model: Any, wanted: dict[str, Any], expected: str) -> None:
    """The label has the weight decay if it is not the default of own models, and the key if it differs from built-in ones."""
    spec = spec_of(model, **wanted)
    assert spec.label == f"{spec.model} b32 gpus=1 num_ps=1 parameter_server{expected}"
    assert ("weight_decay=0.0" in spec.key) is (spec.weight_decay == 0.0)


def test_edited_module_is_not_used_in_the_same_session(project: Path) -> None:
    """A session sends the code that it has imported, also if the file changes."""
    module = write_module(project, "edited", "def cnn(): pass\n")
    spec_of(module.cnn)
    (project / "edited.py").write_text("def cnn(): return 1\n")
    spec_of(module.cnn)
    found = tables.find_own_model("edited.cnn")
    assert found
    assert found.sources == {"edited.py": "def cnn(): pass\n"}


def test_reloaded_module_is_used_in_the_next_session(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next session of a process sends reloaded code, without the outline of the old one."""
    monkeypatch.chdir(project)
    module = write_module(project, "edited", "")
    for text in ("def cnn(): pass\n", "def cnn(): return 1\n"):
        (project / "edited.py").write_text(text)
        importlib.reload(module)
        with Session.open("local", quiet=True) as session:
            spec = session.spec(module.cnn)
        found = tables.find_own_model("edited.cnn")
        assert found
        assert found.sources == {"edited.py": text}
        with pytest.raises(SpecError, match="not known here before it has been trained"):
            get_outline(spec)
        keep_outline(spec, Outline((), {}, 1))
        assert get_outline(spec).multiply_adds == 1


def test_too_large_code_is_refused(project: Path) -> None:
    """Code that is too large is refused with its size, the limit and the remedy."""
    noise = "".join(f"# {hash(str(number))}\n" for number in range(40_000))
    module = write_module(project, "large", f"def cnn(): pass\n{noise}")
    with pytest.raises(SpecError, match=r"is \d+ KiB when packed, and at most 96 go to tasks: install it as a package"):
        describe_model(module.cnn)


def test_name_with_other_letters_is_refused(project: Path) -> None:
    """A model with letters beside a to z is refused with the allowed ones."""
    module = write_module(project, "mine", "def gr\u00f6sse(): pass\n")
    with pytest.raises(
        SpecError, match=r"mine\.gr.sse' is no name of an own model: .* of the letters a to z and A to Z, digits"
    ):
        describe_model(vars(module)["gr\u00f6sse"])


def test_keras_model_with_a_logits_attribute(project: Path) -> None:
    """A Keras model with an attribute `logits` is a Keras model, as a class and as an object."""
    (project / "keras.py").write_text("class Model: ...\n")  # by its module's name, for nothing here imports TensorFlow
    text = "import keras\nclass Net(keras.Model):\n    logits = keras.Model\n    def __call__(self): ...\nNET = Net()\n"
    module = write_module(project, "mine", text)
    assert [describe_model(model).kind for model in (module.Net, module.NET)] == ["tensorflow", "tensorflow"]


@pytest.mark.parametrize("name", ["NET", "cnn"])
def test_imported_model_has_the_name_of_its_module(project: Path, name: str) -> None:
    """A model that a test imports has the name of the module that defines it."""
    (project / "holder.py").write_text(
        "class Net:\n    image_shape, classes = (8, 8, 3), 5\n    def logits(self, net, images): ...\nNET = Net()\n"
        "import functools\n@functools.cache\ndef cnn(): pass\n"
    )
    (project / "user.py").write_text("import pytest\nfrom holder import NET, cnn\n")
    spec = spec_from_file_location("user", project / "user.py")
    assert spec
    assert spec.loader
    sys.modules["user"] = module = module_from_spec(spec)  # as pytest's import mode "importlib" does: before it imports others
    spec.loader.exec_module(module)
    found = describe_model(getattr(module, name))
    assert (found.name, list(found.sources)) == (f"holder.{name}", ["holder.py"])


@pytest.mark.parametrize("called", ["bench.py", "link.py"])
def test_model_of_a_script_has_the_name_of_its_file(project: Path, called: str) -> None:
    """A model of `__main__` has the name of the script's file, also if a link was called."""
    script = project / "bench.py"
    script.write_text(
        "from pytest_dtfperf.session.own_models import describe_model\ndef cnn(): pass\n"
        "if __name__ == '__main__':\n    found = describe_model(cnn)\n    print(found.name, list(found.sources))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    (project / "link.py").symlink_to(script)
    done = subprocess.run([sys.executable, str(project / called)], check=True, capture_output=True, text=True, env=environment)
    assert done.stdout == "bench.cnn ['bench.py']\n"


def test_model_of_a_script_in_a_package(project: Path) -> None:
    """A model of a script in a package has its package's name, and its imports are sent."""
    (project / "kit").mkdir()
    (project / "kit/__init__.py").touch()
    (project / "kit/sizes.py").touch()
    (project / "kit/bench.py").write_text(
        "from pytest_dtfperf.session.own_models import describe_model\nfrom . import sizes\ndef cnn(): pass\n"
        "if __name__ == '__main__':\n    found = describe_model(cnn)\n    print(found.name, sorted(found.sources))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "kit.bench"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, cwd=project)
    assert done.stdout == "kit.bench.cnn ['kit/__init__.py', 'kit/bench.py', 'kit/sizes.py']\n"
