"""Benchmarks: one module each, with ``add_arguments``, ``run(arguments) -> result`` and ``table(result) ->
Markdown``.
"""
