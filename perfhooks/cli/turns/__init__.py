"""``perfhooks compare --run 'A' -- 'B'``: run two commands in interleaved blocks, and compare the blocks.

`supervisor` owns all processes and ends them. `alternation` runs pairs of programs in it until
`perfhooks.analysis.comparison.turns` decides. `program` is one process of a command with its ranks; in the held process
runs `perfhooks.record.launch.turns`.
"""
