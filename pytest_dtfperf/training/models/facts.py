"""What a task tells of an own model, for the controller, which may have no TensorFlow to look at it with."""

from pytest_dtfperf.measurement import NetworkFacts
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.training.models import network_of
from pytest_dtfperf.training.models.outline import Outline, Variable, outline


def facts_of(spec: Spec) -> NetworkFacts:
    """Of the spec's network."""
    network = network_of(spec)
    found = outline(network)
    return NetworkFacts(
        image_shape=network.image_shape,
        classes=network.classes,
        parameters=found.parameters,
        trained_parameters=found.trained_parameters,
        multiply_adds=found.multiply_adds,
        uncounted=found.uncounted,
        variables={variable.name: variable.shape for variable in found.trained},
    )


def outline_in(facts: NetworkFacts) -> Outline:
    """As far as it counts for who only plans: of what is trained."""
    variables = tuple(Variable(name, tuple(shape)) for name, shape in facts.variables.items())
    return Outline(variables, {"logits": (facts.classes,)}, facts.multiply_adds, facts.uncounted)
