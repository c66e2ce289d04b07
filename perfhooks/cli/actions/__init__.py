"""The work of the verbs, imported on use: ``perfhooks --help`` imports no numpy, polars or torch."""
