"""The same training, but for how its variables are placed and sent: what is stored of one says nothing of the other. Pure."""

from pytest_dtfperf.spec import Spec

FIELDS = ("variable_placement", "wire_precision")  # of a spec


def same_but_for_exchange(key: str, other: str) -> bool:
    """Whether two keys of specs differ in nothing else."""
    return _rest(key) == _rest(other)


def in_what(key: str, other: str) -> str:
    """`variable_placement=greedy, this with variable_placement=split`."""
    told, others = _words(key), _words(other)
    differing = [name for name in FIELDS if told.get(name) != others.get(name)]
    one, two = (" ".join(f"{name}={words.get(name, _usual(name))}" for name in differing) for words in (told, others))
    return f"{one}, this with {two}"


def _words(key: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in key.split())


def _rest(key: str) -> dict[str, str]:
    return {name: value for name, value in _words(key).items() if name not in FIELDS}


def _usual(name: str) -> str:
    """What a key that does not say it means."""
    return str(Spec.__dataclass_fields__[name].default)
