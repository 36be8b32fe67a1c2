"""Records as a probe of a host reads them."""

from pytest_dtfperf.training.inputs.imagenet import TFRecords


class UnshuffledRecords(TFRecords):
    """Records that do not wait until a buffer of others is full."""

    shuffles = False
