"""``perfhooks run``: profiles a training without changes to its code.

The command prepares an environment and becomes the training (`command_line`). In each Python process, `site` waits for
the import of torch. `hooks` then subscribes to optimizers and loaders, and `step_signal` detects steps from their
events. Lightning, Fabric, mmengine and transformers use their integrations instead (`frameworks`). `startup` measures
the time before the first step. `exit_summary` prints the result at the end, and `detached` prints it for a killed
command.
"""
