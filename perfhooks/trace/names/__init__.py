"""Names in real traces: of torch, of communication libraries, of device work, and of frames."""
