"""Settings of the suite."""

import sys
from collections.abc import Iterator

import hypothesis
import pytest

# No deadline: time is never asserted, and the first call of a property may load a kernel.
hypothesis.settings.register_profile("suite", deadline=None, max_examples=60)
hypothesis.settings.load_profile("suite")

REGISTRIES = {
    "splash_units.catalogue": "_entries",
    "splash_units.lab.models": "_builders",
    "splash_units.lab.data.sources": "_registered",
}


@pytest.fixture(autouse=True)
def _names_go_with_the_test_that_registered_them() -> Iterator[None]:
    """Tests share a process; what one adds to a registry must not be there for the next."""
    kept = [
        (registry, dict(registry))
        for module, name in REGISTRIES.items()
        if module in sys.modules
        for registry in [getattr(sys.modules[module], name)]
    ]
    yield
    for registry, before in kept:
        registry.clear()
        registry.update(before)
