"""``perfhooks compare --run 'A' -- 'B'``: two commands live together, take turns, and are compared block by block.

`program` is one process of a command, with all its ranks, that is held and let go; `alternation` has pairs of them take
turns until the verdict of `perfhooks.comparing.turns` is decided; `revision` puts a revision of git beside the working
tree; `written` says what came of it. The held side is `perfhooks.launching.turns`.
"""
