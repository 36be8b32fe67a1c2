"""The hash of the code that trained."""

import re
import shutil
import textwrap
import time
from pathlib import Path

import pytest

from pytest_dtfperf.baselines.program import TRAINING, meaning, program_of, training_hash
from pytest_dtfperf.spec import Spec

SOURCE = '''
"""Steps."""

BATCH = 32  # images

class Trainer:
    """Trains."""

    def step(self, images: int = BATCH) -> str:
        """One step."""
        return f"{images} images" if images else ""
'''

SAME = {
    "no comments": SOURCE.replace("  # images", ""),
    "other docstrings": SOURCE.replace("One step.", "A step of many.").replace("Trains.", "Is trained."),
    "no docstrings": re.sub(r'""".+"""\n', "", SOURCE).replace("Trainer:", "Trainer: # of us"),
    "other lines": SOURCE.replace("(self, images: int = BATCH)", "(\n        self,\n        images: int = BATCH,\n    )"),
    "other quotes": SOURCE.replace('f"{images} images"', "f'{images} images'"),
}
OTHER = {
    "a number": SOURCE.replace("32", "64"),
    "a string": SOURCE.replace("{images} images", "{images} pictures"),
    "an order": SOURCE.replace('f"{images} images" if images else ""', '"" if images else f"{images} images"'),
    "a string that is no docstring": SOURCE.replace("BATCH = 32", 'BATCH = "32"'),
    "a statement more": SOURCE + "\nTrainer()\n",
}


@pytest.mark.parametrize("source", SAME.values(), ids=SAME)
def test_what_does_not_change_the_program(source: str) -> None:
    """Comments, docstrings and layout may change: Python does the same."""
    assert meaning(source) == meaning(SOURCE)


@pytest.mark.parametrize("source", OTHER.values(), ids=OTHER)
def test_what_changes_the_program(source: str) -> None:
    """Whatever Python would do otherwise is another program."""
    assert meaning(source) != meaning(SOURCE)


def test_hash_is_the_same_for_every_python() -> None:
    """Every syntax in use here is written out as it was when this test was made, whichever Python runs it."""
    source = textwrap.dedent("""
        def f(a, /, *b, c: int = 1, **d):
            with open(a) as x, b:
                x[1:2] = [*b, -1.5e-3, 1j, True, None, b"y", f"{a!r:>{c}} z" "w"]
            match d:
                case {"k": [_, *rest]} | None if rest:
                    return lambda: (yield)
    """)
    said = (
        "(Module body=(FunctionDef name='f' args=(arguments posonlyargs=(arg arg='a') vararg=(arg arg='b') "
        "kwonlyargs=(arg arg='c' annotation=(Name id='int' ctx=(Load))) kw_defaults=(Constant value=1) kwarg=(arg arg='d')) "
        "body=(With items=(withitem"
    )
    assert meaning(source).startswith(said)
    assert "conversion=114 format_spec=(JoinedStr values=(Constant value='>')(FormattedValue" in meaning(source)


def test_every_part_of_training_counts_but_what_does_not_train(tmp_path: Path) -> None:
    """A model's change changes the hash; so does its name; what makes data sets or runs another's program does not."""
    folder = tmp_path / "training"
    shutil.copytree(TRAINING, folder, ignore=shutil.ignore_patterns("__pycache__"))
    training_hash.cache_clear()
    before = training_hash(folder)
    assert before == training_hash()
    for name in ("command.py", "program.py", "output.py", "making/pictures.py"):
        (folder / name).write_text("print()\n")
    training_hash.cache_clear()
    assert training_hash(folder) == before
    (folder / "models" / "alexnet.py").rename(folder / "models" / "alexnet2.py")
    training_hash.cache_clear()
    assert training_hash(folder) != before


def test_hash_is_quick_and_made_once() -> None:
    """A session waits for it once, and for no longer than a person notices."""
    training_hash.cache_clear()
    began = time.process_time()
    found = training_hash()
    assert time.process_time() - began < 2  # a few tenths, where nothing else is at work
    began = time.process_time()
    assert training_hash() == found
    assert time.process_time() - began < 0.01
    assert re.fullmatch("[0-9a-f]{12}", found)


def test_program_of_a_spec() -> None:
    """Our own training has a hash; another's program has none, because its change is what is tested."""
    assert program_of(Spec(model="trivial", batch_size=1, gpus=1)) == {"training": training_hash()}
    assert program_of(Spec(model="theirs", batch_size=1, gpus=1, command=("python", "train.py"))) == {}
