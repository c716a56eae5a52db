"""HG-DAgger (arXiv 1810.02890): imitate demonstrations and what a person did when taking over; the policy's own steps
are dropped.
"""

from vla_rl.algorithms.cloning import Cloning


class HgDagger(Cloning):
    """See the module."""

    name = "hg_dagger"
    uses_rollouts = "none"
