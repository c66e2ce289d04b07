"""``perfhooks run``: profiles a training without changes to its code.

The command prepares an environment and becomes the training (`command_line`). In each Python process, `site` waits for
the import of torch. After this import, `hooks` subscribes to optimizers and loaders, whose events `step_signal`
converts to steps.
"""
