"""What `train(model=...)` makes of a model that is no name: a name, code that travels, or one line that says why not."""

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
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other test knows these models."""
    monkeypatch.setattr(MODELS, "data", dict(MODELS.data))
    monkeypatch.setattr(tables, "_own_models", {})


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that Python imports from."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def module_of(project: Path, name: str, text: str) -> ModuleType:
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
def test_its_name_is_how_python_imports_it(model: Any, name: str, kind: str) -> None:
    """The spec, its key and its label have that name, and it is read again where nobody has the model any more."""
    spec = spec_of(model)
    assert (spec.model, spec.own_model) == (name, kind)
    assert spec.key.startswith(f"model={name} batch_size=32 ")
    assert spec.label.startswith(f"{name} b32 ")
    tables._own_models.clear()
    del MODELS.data[name]
    assert Spec.from_json(spec.to_json()) == spec


def test_no_model_of_ours_has_such_a_name() -> None:
    """So that neither can be taken for the other."""
    assert not [name for name in MODELS.data if tables.is_own_model_name(name)]


def test_what_its_module_imports_travels_with_it(project: Path) -> None:
    """Of the same folder, from within functions and by relative names, too; nothing that is installed or not imported."""
    (project / "kit").mkdir()
    for name, text in {"__init__": "", "blocks": "from . import sizes\n", "sizes": "UNITS = 3\n"}.items():
        (project / f"kit/{name}.py").write_text(text)
    (project / "late.py").write_text("import numpy\n")
    (project / "unused.py").touch()
    module = module_of(project, "mine", "import os, pytest, kit.blocks\ndef cnn():\n    from late import numpy\n")
    found = describe_model(module.cnn)
    assert sorted(found.sources) == ["kit/__init__.py", "kit/blocks.py", "kit/sizes.py", "late.py", "mine.py"]
    assert found.sources["kit/sizes.py"] == "UNITS = 3\n"


def test_folders_that_are_no_packages(project: Path) -> None:
    """What a module imports of one travels, and one that is beside it by chance is none of its imports."""
    for folder in ("kit/deep", "wandb/run-1"):
        (project / folder).mkdir(parents=True)
    (project / "kit/deep/blocks.py").write_text("from . import sizes\n")
    (project / "kit/deep/sizes.py").write_text("UNITS = 3\n")
    text = (
        "import kit.deep.blocks\ntry:\n    import wandb.sdk\nexcept ImportError: ...\ndef cnn(): from kit.deep import sizes\n"
    )
    found = describe_model(module_of(project, "mine", text).cnn)
    assert sorted(found.sources) == ["kit/deep/blocks.py", "kit/deep/sizes.py", "mine.py"]


def test_links_lead_to_what_python_finds(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A module or package that is a link to one of another name travels by its imported name, with its neighbours."""
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
def test_sources_are_read_as_python_reads_them(project: Path, source: bytes) -> None:
    """In whatever encoding a module is, its text travels, and is the same program there."""
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


def test_an_installed_packages_module_does_not_travel() -> None:
    """Hosts have the package, or they are named: which it is, is known."""
    import jsonschema

    found = describe_model(jsonschema.validate)
    assert (found.packed, found.package) == ("", f"jsonschema {metadata.version('jsonschema')}")


def test_layers_are_counted_without_tensorflow() -> None:
    """A `Network` that is given needs no task to be counted, in the size of its input."""
    code = (
        "import sys; from tests.session.test_own_models import models, spec_of; "
        "from pytest_dtfperf.training.models.outline import get_outline; "
        "assert get_outline(spec_of(models.Dense)).multiply_adds == 7840; "
        "cifar = spec_of(models.Dense, data='cifar10', data_dir='/'); assert get_outline(cifar).multiply_adds == 30720; "
        "assert not {'tensorflow', 'keras'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("device, expected", [("cpu", "NHWC"), ("gpu", "NHWC")])
def test_what_tensorflow_makes_is_given_images_in_nhwc(device: str, expected: str) -> None:
    """On GPUs, too, where models of ours get NCHW; weight decay is its own affair."""
    spec = spec_of(models.small_cnn, device=device)
    assert (spec.data_format, spec.weight_decay) == (expected, 0.0)
    assert spec_of(models.Dense, device="gpu").data_format == "NCHW"


def made_within() -> Any:
    def cnn() -> None:
        """Nobody can import this."""

    return cnn


@pytest.mark.parametrize(
    "model, wanted, words",
    [
        (lambda images: images, {}, "is made within a function, where no task can import it from"),
        (made_within(), {}, "is made within a function, where no task can import it from"),
        (models.Fixed(), {}, "is held by no module, so no task can import it"),
        (3, {}, "model=3 is neither a model's name nor a model"),
        (models.small_cnn, {"data_format": "NCHW"}, "is given images in data_format=NHWC, not NCHW"),
        (models.small_cnn, {"command": ["python", "train.py"]}, "a command trains a model of its own"),
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
def test_what_cannot_be_is_refused(model: Any, wanted: dict[str, Any], words: str) -> None:
    """In one line, before anything is started."""
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
def test_a_network_that_says_what_cannot_be(project: Path, body: str, words: str) -> None:
    """Of images, of classes, or of what its layers make: refused in one line before anything is started."""
    module = module_of(project, "mine", NETWORK.format(body=body))
    with pytest.raises(SpecError, match=rf"^(train\(\): )?mine\.Net {re.escape(words)}.*$"):
        spec_of(module.Net)


def test_a_decorated_function_that_is_another(project: Path) -> None:
    """What a module holds by the name must be what was given: a task would train another."""
    module = module_of(project, "twice", "def cnn(): pass\nfirst = cnn\ndef cnn(): pass\n")
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
def test_a_module_that_cannot_be_imported(project: Path, text: str, words: str) -> None:
    """What a command line names says why not, in one line."""
    (project / "broken.py").write_text(text)
    with pytest.raises(SpecError, match=words):
        import_model("broken:cnn")


def test_a_backend_of_keras_that_is_not_installed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Keras cannot be imported for want of the backend that it was told, that is why, and not the module."""
    (project / "broken.py").write_text("import no_such_backend\n")
    monkeypatch.setenv("KERAS_BACKEND", "no_such_backend")
    words = "there is no module no_such_backend, the backend of Keras in KERAS_BACKEND: it must be tensorflow$"
    with pytest.raises(SpecError, match=words):
        import_model("broken:cnn")


@pytest.mark.parametrize(
    "model, wanted, told",
    [
        (models.small_cnn, {}, ""),
        (models.small_cnn, {"weight_decay": 4e-5}, " weight_decay=4e-05"),
        (models.Dense, {}, ""),
        (models.Dense, {"weight_decay": 0.0}, " weight_decay=0.0"),
    ],
    ids=["Keras", "Keras and more", "layers", "layers without"],
)
def test_its_label_tells_what_was_given(model: Any, wanted: dict[str, Any], told: str) -> None:
    """Weight decay stands there where it is not as usual of such models, and in the key where it is not as of ours."""
    spec = spec_of(model, **wanted)
    assert spec.label == f"{spec.model} b32 gpus=1 num_ps=1 parameter_server{told}"
    assert ("weight_decay=0.0" in spec.key) is (spec.weight_decay == 0.0)


def test_what_is_edited_meanwhile_is_for_the_next_session(project: Path) -> None:
    """A session trains what it has imported, as it was then: its repeats are of one program."""
    module = module_of(project, "edited", "def cnn(): pass\n")
    spec_of(module.cnn)
    (project / "edited.py").write_text("def cnn(): return 1\n")
    spec_of(module.cnn)
    found = tables.find_own_model("edited.cnn")
    assert found
    assert found.sources == {"edited.py": "def cnn(): pass\n"}


def test_the_next_session_trains_what_was_edited(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the same process, as a notebook's is: the code that was reloaded, of which nothing is known from the one before."""
    monkeypatch.chdir(project)
    module = module_of(project, "edited", "")
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


def test_code_that_is_too_large(project: Path) -> None:
    """It says how large it is, how large it may be, and how to go on."""
    noise = "".join(f"# {hash(str(number))}\n" for number in range(40_000))
    module = module_of(project, "large", f"def cnn(): pass\n{noise}")
    with pytest.raises(SpecError, match=r"is \d+ KiB when packed, and at most 96 go to tasks: install it as a package"):
        describe_model(module.cnn)


def test_a_letter_that_no_name_may_have(project: Path) -> None:
    """Python takes it, records and labels do not: the letters that they take are named."""
    module = module_of(project, "mine", "def gr\u00f6sse(): pass\n")
    with pytest.raises(
        SpecError, match=r"mine\.gr.sse' is no name of an own model: .* of the letters a to z and A to Z, digits"
    ):
        describe_model(vars(module)["gr\u00f6sse"])


def test_a_layer_that_is_called_logits(project: Path) -> None:
    """A Keras model that has one is a Keras model, as a class and as an object."""
    (project / "keras.py").write_text("class Model: ...\n")  # by its module's name, for nothing here imports TensorFlow
    text = "import keras\nclass Net(keras.Model):\n    logits = keras.Model\n    def __call__(self): ...\nNET = Net()\n"
    module = module_of(project, "mine", text)
    assert [describe_model(model).kind for model in (module.Net, module.NET)] == ["tensorflow", "tensorflow"]


@pytest.mark.parametrize("name", ["NET", "cnn"])
def test_what_a_module_holds_is_its_makers(project: Path, name: str) -> None:
    """Not that of a test that has imported it, though Python met the test first, and a decorator made an object of it."""
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
def test_a_script_is_imported_by_its_files_name(project: Path, called: str) -> None:
    """A model of `__main__` is a task's by the name of the script, whatever link it was called by."""
    script = project / "bench.py"
    script.write_text(
        "from pytest_dtfperf.session.own_models import describe_model\ndef cnn(): pass\n"
        "if __name__ == '__main__':\n    found = describe_model(cnn)\n    print(found.name, list(found.sources))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    (project / "link.py").symlink_to(script)
    done = subprocess.run([sys.executable, str(project / called)], check=True, capture_output=True, text=True, env=environment)
    assert done.stdout == "bench.cnn ['bench.py']\n"


def test_a_script_of_a_package(project: Path) -> None:
    """Called by its name there, it has that, and what it imports of the package travels with it."""
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
