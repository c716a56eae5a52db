"""Supervised fine-tuning: imitate the demonstrations, and nothing of what was practised."""

from vla_rl.algorithms.base import Algorithm


class SupervisedFineTuning(Algorithm):
    """Where every other algorithm starts, and the baseline that gets the same gradient steps and no practice."""

    name = "sft"
    uses_interventions = False
    uses_rollouts = "none"
