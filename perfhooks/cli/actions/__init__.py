"""The work of the verbs, imported on use.

A verb module has options and help only, so ``perfhooks --help`` imports no numpy, polars or torch.
"""
