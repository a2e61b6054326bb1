"""Settings of the suite."""

from collections.abc import Iterator
from importlib import import_module

import hypothesis
import pytest

# No deadline: time is never asserted, and the first call of a property may load a kernel.
hypothesis.settings.register_profile("suite", deadline=None, max_examples=60)
hypothesis.settings.load_profile("suite")

REGISTRIES = {
    "splash_units.catalogue": "_entries",
    "splash_units.lab.models": "_builders",
    "splash_units.lab.data.sources": "_registered",
    "splash_units.lab.plugins": "_loaded",
}


@pytest.fixture(autouse=True)
def _names_go_with_the_test_that_registered_them() -> Iterator[None]:
    """Tests share a process; what one adds to a registry must not be there for the next."""
    registries = [getattr(import_module(module), name) for module, name in REGISTRIES.items()]
    kept = [dict(registry) for registry in registries]
    yield
    for registry, before in zip(registries, kept, strict=True):
        registry.clear()
        registry.update(before)
