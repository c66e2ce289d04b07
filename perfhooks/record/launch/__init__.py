"""``perfhooks run``: what watches a training that does not know of it.

The command prepares an environment and becomes the training (`command_line`). In every Python of it, `site` waits for
torch; `arming` then listens to optimizers and loaders, and `step_signal` makes steps of what it hears. Lightning,
Fabric and mmengine get their own face instead (`frameworks`). `startup` tells where the time before the first step
went. `exit_summary` prints the result at the end, and `detached` that of a killed command.
"""
