"""Filtered behaviour cloning: imitate demonstrations, interventions and successful rollouts, all at weight 1."""

from vla_rl.algorithms.cloning import Cloning


class FilteredBehaviourCloning(Cloning):
    """HABC with a gate of 1: the same credit, the same mixture, no critics."""

    name = "filtered_bc"
    uses_rollouts = "successes"
