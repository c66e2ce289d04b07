"""``perfhooks compare --run 'A' -- 'B'``: two commands run in interleaved blocks, and are compared block by block.

The command line forks a supervisor (`supervisor`). It owns the programs, and ends all of their processes however the
comparison ends. `alternation` runs pairs of programs in it until the verdict of `perfhooks.analysis.comparison.turns`
is decided. `program` is one process of a command, with all its ranks, that is held and let go; the held side is
`perfhooks.record.launch.turns`. `freezing` pauses what a held program has started, and `processes` finds it.
`work_folder` is the temporary folder, `revision` puts a worktree of git into it, and `written` words the result.
"""
