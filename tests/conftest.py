"""Settings of the suite."""

import hypothesis

# No deadline: time is never asserted, and the first call of a property may load a kernel.
hypothesis.settings.register_profile("suite", deadline=None, max_examples=60)
hypothesis.settings.load_profile("suite")
