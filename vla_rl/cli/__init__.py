"""The verbs of ``vla-rl``: arguments in, words out. What they do is in `vla_rl.api` and the rooms below it."""
