"""SPLASH units: learnable piecewise-linear activations at the price of ReLU."""
