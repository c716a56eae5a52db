"""Ways to practice without a person, by row of the benchmark `outcomes`: changes to the preset `imagined`."""

OURS = (
    "imagined_edit",
    "imagined_edit_1200",
    "graded",
    "bold",
    "bold_1200",
    "bold_hurried",
    "untaught",
    "edit",
    "unimagined",
    "unimagined_patient",
    "chunk_critic",
    "half_draws",
    "residual_td",
    "residual_td_05",
)
# Options under the names that they had when the published cells were measured. Cells keep these names.
_MEASURED_AS = {
    "learning.distill_steps": "learning.teach_steps",
    "learning.best_of_n.num_samples": "learning.choice.draws",
    "learning.best_of_n.offset_std": "learning.choice.offset",
    "learning.best_of_n.graded_residual": "learning.choice.graded_edit",
    "learning.best_of_n.ood_penalty": "learning.choice.novelty_cost",
    "learning.branches.kl_coef": "learning.branches.distance_cost",
    "learning.branches.ood_ratio": "learning.branches.alarm_ratio",
}
_DEFAULTS_THEN = {"learning.td.size_cost=0.0125"}  # what published cells do not name
_CLONING = [
    "exploration=0",
    "budget.steps_per_round=500",
    "learning.actor.batch_size=128",
    "learning.actor.learning_rate=1e-3",
    "learning.actor.warmup_steps=50",
    "learning.actor.decay_steps=500",
    "learning.actor.schedule_every_round=true",
]
_WEIGHTED = [
    "learning.critic_training.steps_per_actor_step=0.5",
    "learning.critic_training.steps_before_round=300",
]
_TD = ["algorithm=residual_td", "exploration=0.25"]
_ON_POLICY = [  # as many episodes in more rounds
    "budget.rounds=9",
    "budget.episodes_per_round=50",
    "budget.steps_per_round=1",
]
# The preset `alone` as it was when the cells of `any_policy` and `detector` were measured.
EARLIER_BUDGET = ["budget.compare_episodes=0", "budget.steps_per_demonstration=50", "budget.steps_per_round=800"]
EARLIER_IMITATION = ["learning.distill_steps=400", "learning.actor.decay_steps=400"]
PATIENT = ["learning.discount=1"]
# Every draw is moved by the whole edit, and what is new costs nothing.
WHOLE_EDITS = ["learning.best_of_n.graded_residual=false", "learning.best_of_n.ood_penalty=0"]
BOLD = [*PATIENT, *WHOLE_EDITS]
_UNTAUGHT = [*BOLD, "learning.distill_steps=0", "learning.actor.precision=float32"]
_TAUGHT = [  # as `imagined_edit` imitates
    "learning.distill_steps=400",
    "learning.actor.batch_size=128",
    "learning.actor.warmup_steps=50",
    "learning.actor.decay_steps=400",
    "learning.actor.schedule_every_round=true",
    "learning.actor.precision=auto",
]
METHODS = {
    "imagined_edit": [],
    "half_draws": [],  # the same preset, since imagined chunks take half the steps
    "imagined_edit_1200": ["budget.rounds=8"],
    "graded": [*PATIENT, "learning.best_of_n.ood_penalty=0.3"],
    "bold": BOLD,
    "bold_1200": [*BOLD, "budget.rounds=8"],
    "bold_hurried": WHOLE_EDITS,
    "untaught": _UNTAUGHT,
    "edit": [*_UNTAUGHT, "learning.best_of_n.num_samples=1"],  # without selection; self-imitation alone is filtered_bc
    # All of ours but the edit that imagination practices; candidates are moved by chance.
    "unimagined": ["algorithm=chunk_critic", *_TAUGHT],
    "unimagined_patient": ["algorithm=chunk_critic", *_TAUGHT, *PATIENT],
    "chunk_critic": ["algorithm=chunk_critic", *PATIENT],
    "residual_td": [*_TD, "learning.td.size_cost=0.0125"],
    "residual_td_05": [*_TD, "learning.td.size_cost=0.05"],  # the preset `alone`
    "residual_ppo": ["algorithm=residual_ppo", "exploration=0.15", *_ON_POLICY],
    "filtered_bc": ["algorithm=filtered_bc", *_CLONING],
    "habc": [
        "algorithm=habc",
        *_CLONING,
        *_WEIGHTED,
        "learning.critic.efficiency_return_steps=1000",
        "learning.critic.efficiency_unit_steps=10",
        "learning.advantage.warmup_steps=0",
        "learning.advantage.advantage_horizon=24",
        "learning.advantage.efficiency_scale=0.08",
    ],
    "awr": ["algorithm=awr", *_CLONING, *_WEIGHTED],
    "sft": ["algorithm=sft", *_CLONING, "budget.episodes_per_round=0"],
}


def as_measured(options: list[str]) -> list[str]:
    """Return options under the names that published cells keep, so that they can be compared."""
    named = (each.partition("=") for each in options if each not in _DEFAULTS_THEN)
    return ["=".join((_MEASURED_AS.get(name, name), value)) for name, _, value in named]
