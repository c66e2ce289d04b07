"""``perfhooks run``: profiles a training without changes to its code.

The command prepares an environment and becomes the training (`command_line`). Each Python process loads the module
`site` at its start. After the import of torch, `hooks` subscribes to optimizers and loaders. `step_signal` converts
their events to steps.
"""
