"""What the verbs do, imported when it is asked for.

A verb itself is only words: so ``perfhooks --help`` waits for neither numpy nor polars, and needs no torch.
"""
