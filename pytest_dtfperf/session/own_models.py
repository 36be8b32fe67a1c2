"""Convert the model of `train(model=small_cnn)` to a name that tasks can import, and collect its code, without TensorFlow."""

import ast
import importlib
import importlib.util
import os
import site
import sys
import sysconfig
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from importlib import metadata
from importlib.machinery import PathFinder
from inspect import isfunction
from modulefinder import ModuleFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from pytest_dtfperf.errors import SpecError, describe_unknown_name, show_value
from pytest_dtfperf.spec import tables
from pytest_dtfperf.spec.tables import OwnModel
from pytest_dtfperf.training.models import keep_model
from pytest_dtfperf.training.own import describe_missing_backend

_STANDARD_LIBRARY = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), sysconfig.get_config_var("DESTSHARED")}
_FOLDER = ("", "", 0)  # the type of an entry for a module that `ModuleFinder` does not know

HOW = "Give a class, a function, or an object that a module assigns to a name (docs/own-models.md)."


def with_name(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with a name in place of a model. Raises `SpecError` if tasks could not import it."""
    model = wanted.get("model")
    if model is None or isinstance(model, str):
        return dict(wanted)
    if wanted.get("command"):
        raise SpecError("train(): a command trains its own model: model must be a name, which its results get")
    found = describe_model(model)
    tables.add_own_model(found)
    if found.kind == tables.LAYERS:
        keep_model(found.name, model)
    return {**wanted, "model": found.name}


def import_model(word: str) -> Any:
    """Return the model of `my_models:small_cnn` on a command line. Raises `SpecError`.

    Modules are searched here and in perf_tests, where pytest finds them, so that a name is the same for both. The standard
    library is searched before these folders: a json.py of the project does not replace Python's.
    """
    name, _, attribute = word.partition(":")
    if not tables.is_own_model_name(f"{name}.{attribute}"):
        raise SpecError(f"a model of your own is a module, a colon and its name there, as my_models:small_cnn, not {word!r}")
    here = [str(folder) for folder in (Path.cwd(), Path.cwd() / "perf_tests") if folder.is_dir()]
    behind = max((at for at, folder in enumerate(sys.path, start=1) if folder in _STANDARD_LIBRARY), default=0)
    sys.path[behind:behind] = [folder for folder in here if folder not in sys.path]
    try:
        found: Any = importlib.import_module(name)
    except ModuleNotFoundError as error:
        where = f"; looked for in {', '.join(here)}, and among what is installed" if error.name == name.split(".")[0] else ""
        raise SpecError(
            f"{name} cannot be imported: there is no module {error.name}{describe_missing_backend(error.name)}{where}"
        ) from error
    except (Exception, SystemExit) as error:
        raise SpecError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            known = [each for each in vars(found) if not each.startswith("_")] if hasattr(found, "__dict__") else []
            raise SpecError(f"{word}: {describe_unknown_name('name in it', part, known)}")
        found = getattr(found, part)
    return found


def describe_model(model: Any) -> OwnModel:
    """Return the data for a task to import a user's model. Raises `SpecError`."""
    module, attribute = _location_of(model)
    name = _import_name(module)
    kind = tables.LAYERS if callable(getattr(model, "logits", None)) and not _is_of_keras(model) else tables.TENSORFLOW
    _check(f"{name}.{attribute}", model, kind)
    file = _file_of(module)
    root = _root(file, name)
    if _is_installed(root):
        return OwnModel(module=name, attribute=attribute, kind=kind, package=_package(name))
    packed = tables.pack_sources(_sources(root, name, file))
    if len(packed) > tables.MOST_PACKED_SOURCES:
        raise SpecError(
            f"train(): {name}, with what it imports of {root}, is {len(packed) >> 10} KiB when packed, and at most "
            f"{tables.MOST_PACKED_SOURCES >> 10} go to tasks: install it as a package on the hosts, too"
        )
    return OwnModel(module=name, attribute=attribute, kind=kind, packed=packed)


def _is_of_keras(model: Any) -> bool:
    """Return whether a model is of Keras: a Keras model with a layer `self.logits` is no `Network`."""
    made = model if isinstance(model, type) else type(model)
    return any(base.__module__.partition(".")[0] == "keras" for base in made.__mro__)


def _location_of(model: Any) -> tuple[ModuleType, str]:
    """Return the module that holds a model, and the name there."""
    message = f"train(): model={show_value(model)}"
    if isinstance(model, type) or isfunction(model):
        module, attribute = sys.modules.get(model.__module__), model.__qualname__
        if "<" in attribute or module is None:
            raise SpecError(f"{message} is made within a function, where no task can import it from. {HOW}")
        if _find_attribute(module, attribute) is not model:
            raise SpecError(f"{message} is not what {module.__name__}.{attribute} is: a task would import another. {HOW}")
        return module, attribute
    if not (callable(model) or hasattr(model, "logits")):
        raise SpecError(f"{message} is neither a model's name nor a model. {HOW}")
    found = [(module, name) for module in _modules() for name, each in list(vars(module).items()) if each is model]
    if not found:
        raise SpecError(f"{message} is held by no module, so no task can import it. {HOW}")
    return next((each for each in found if _assigns(*each)), found[0])


def _assigns(module: ModuleType, name: str) -> bool:
    """Return whether a module defines the object of that name instead of importing it. A decorated one may be no function."""
    tree = ast.parse(_read_text(str(module.__file__)))
    if any(isinstance(each, ast.FunctionDef | ast.ClassDef) and each.name == name for each in tree.body):
        return True
    targets = (each.targets if isinstance(each, ast.Assign) else [getattr(each, "target", None)] for each in tree.body)
    return any(isinstance(target, ast.Name) and target.id == name for each in targets for target in each)


def _find_attribute(module: ModuleType, attribute: str) -> Any:
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    return found


def _modules() -> Iterator[ModuleType]:
    is_installed = cache(_is_installed)  # many modules are in the same folder
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if (
            isinstance(module, ModuleType)
            and file
            and file.endswith(".py")
            and not is_installed(os.path.dirname(file))
            and name != "__mp_main__"
        ):
            yield module


def _import_name(module: ModuleType) -> str:
    """Return the name by which other processes can import a module, also of a script."""
    file = getattr(module, "__file__", None)
    if not file or not file.endswith(".py") or not os.path.exists(file):
        raise SpecError(f"train(): a model of {module.__name__} has no file that could go to tasks: put it into a module")
    name = module.__name__
    if name == "__main__":
        spec = getattr(module, "__spec__", None)  # of a module that is run by its name: python -m kit.bench
        name = spec.name if spec else Path(_file_of(module)).stem
    if not all(part.isidentifier() for part in name.split(".")):
        raise SpecError(
            f"train(): {file} cannot be imported by its name: put the model into a module with an identifier as its name"
        )
    return name


def _check(name: str, model: Any, kind: str) -> None:
    """Check a model as far as possible without TensorFlow. Raises `SpecError`."""
    tables.check_own_model_name(name)
    if kind != tables.LAYERS or isinstance(model, type):
        return
    for attribute in ("image_shape", "classes"):
        if not hasattr(model, attribute):
            raise SpecError(f"train(): {name} has logits but no {attribute}: see Network in docs/own-models.md")


def _file_of(module: ModuleType) -> str:
    """Return the path at which Python has found a module, even if it is a link: its neighbours are there, too.

    For a script, Python searches the folder of the link's target; and a link among what is installed leads to the user's
    package.
    """
    file = os.path.abspath(str(module.__file__))
    return os.path.realpath(file) if module.__name__ == "__main__" or _is_installed(os.path.dirname(file)) else file


def _root(file: str, name: str) -> str:
    """Return the folder in which Python finds a module."""
    path = Path(file)
    folder = path.parent.parent if path.stem == "__init__" else path.parent
    for part in reversed(name.split(".")[:-1]):
        if folder.name != part:  # pytest's import mode "importlib" uses names of folders that are no packages
            break
        folder = folder.parent
    return str(folder)


def _is_installed(folder: str) -> bool:
    real = Path(folder).resolve()
    return any(real.is_relative_to(home) for home in _list_homes())


@cache  # to list them takes half a millisecond, and thousands of modules are compared with them
def _list_homes() -> Collection[Path]:
    """Return the folders of the standard library and of installed packages."""
    paths = sysconfig.get_paths()
    homes = {paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"], *site.getsitepackages()}
    if site.ENABLE_USER_SITE:
        homes.add(site.getusersitepackages())
    return {Path(home).resolve() for home in homes}


def _package(module: str) -> str | None:
    distributions = metadata.packages_distributions().get(module.partition(".")[0], [])
    return f"{distributions[0]} {metadata.version(distributions[0])}" if distributions else None


def _sources(root: str, name: str, file: str) -> dict[str, str]:
    """Return path -> text of the module in `file`, and of all its imports below the folder, also within functions."""
    # Hosts have these. Python's own come before a file of the same name beside the model.
    finder = _Finder(path=[root], excludes=["pytest_dtfperf", *sys.stdlib_module_names])
    try:
        finder.import_hook(name)
    except ImportError:  # a folder above it is no package; tasks can import such names, too
        finder.run_script(file)
    _check_hidden(finder, name, root)
    found: dict[str, str] = {}
    for each in finder.modules.values():
        path = each.__file__  # type: ignore[attr-defined]  # typeshed does not describe its modules
        if path and path.endswith(".py"):
            found[os.path.relpath(path, root)] = _read_text(path)
    return found


def _check_hidden(finder: ModuleFinder, name: str, root: str) -> None:
    """Refuse a file that replaces a module of the standard library here, but not in tasks. Raises `SpecError`."""
    for imported_name in [name.partition(".")[0], *finder.badmodules]:
        file = getattr(sys.modules.get(imported_name), "__file__", None)
        if imported_name in sys.stdlib_module_names and file and Path(file).resolve().is_relative_to(Path(root).resolve()):
            raise SpecError(
                f"train(): {name} needs {file}, which has the name of a module of Python's standard library: tasks import that "
                "one. Give the file another name"
            )


class _Finder(ModuleFinder):
    """A finder that supports folders that are no packages: their modules are sent like those of packages."""

    def find_module(self, name: str, path: Any, parent: Any = None) -> Any:
        wanted = f"{parent.__name__}.{name}" if parent else name
        found = PathFinder.find_spec(name, path or self.path) if wanted not in self.excludes else None
        if found and found.loader is None:
            return None, list(found.submodule_search_locations or ()), _FOLDER
        return super().find_module(name, path, parent)

    def load_module(self, fqname: str, fp: Any, pathname: Any, file_info: Any) -> Any:
        if file_info is not _FOLDER:
            return super().load_module(fqname, fp, pathname, file_info)
        module: Any = self.add_module(fqname)
        module.__path__ = pathname
        return module


def _read_text(path: str) -> str:
    """Return the text as Python reads it: in the encoding of its first lines, without a byte order mark."""
    return importlib.util.decode_source(Path(path).read_bytes())
