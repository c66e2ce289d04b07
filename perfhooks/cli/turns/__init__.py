"""``perfhooks compare --run 'A' -- 'B'``: run two commands in interleaved blocks, and compare the blocks.

`supervisor` owns all processes. In the supervisor, `alternation` runs pairs of programs until
`perfhooks.analysis.comparison.turns` decides. `perfhooks.record.launch.turns` runs inside these programs.
"""
