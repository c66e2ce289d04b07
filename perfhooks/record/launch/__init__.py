"""``perfhooks run``: profiles a training without changes to its code.

The command prepares an environment and becomes the training (`command_line`). In each Python process, `site` waits for
the import of torch. `hooks` then subscribes to optimizers and loaders, and `step_signal` detects steps from their
events.
"""
