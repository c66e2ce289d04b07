"""Everything that runs in the training process."""
