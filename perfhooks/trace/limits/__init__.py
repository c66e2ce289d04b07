"""Distance of operators, kernels and steps from the limits of the device."""
