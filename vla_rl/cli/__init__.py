"""The command line: the composition root, and the only place that may import everything. Each verb is imported when
it is called.
"""
