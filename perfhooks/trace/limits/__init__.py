"""How far operators, kernels and steps are from what the device can do."""
