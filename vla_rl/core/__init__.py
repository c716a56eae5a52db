"""Types, protocols, clocks, errors and configuration: the leaf that every other part imports. Needs numpy, and
draccus to read configs.
"""
