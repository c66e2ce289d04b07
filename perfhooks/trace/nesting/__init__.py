"""What lies in what: slices, intervals, steps' parts, and the work of devices with who launched it."""
