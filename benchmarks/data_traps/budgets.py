"""Traps of settings that do not fit the policy's horizon, and of finished runs that are given a larger budget."""

import shutil
from functools import partial
from pathlib import Path

from benchmarks.data_traps.moves import demonstration, printed_by, trained_run, untrained_run
from benchmarks.data_traps.traps import expect, trap
from vla_rl.acting.policy_folder import find_policy
from vla_rl.acting.rollout import resolve_config
from vla_rl.data.run_folder import RunFolder
from vla_rl.data.store import EpisodeStore

_HORIZON = "settings beyond the policy's horizon"
_TOO_LONG = {
    "execution.execute_ticks=100": "execution.execute_ticks to 16",
    "execution.strategy=naive execution.expected_delay_ticks=16": "Set less",
    "execution.strategy=naive latency.typical=16": "Set less",
    "execution.strategy=naive latency.unit=ms latency.typical=1600": "Set less",
    "latency.typical=20": "execution.hold_ticks",
    "execution.strategy=training_time_prefix": "policy.prefix_max=6",
    "execution.strategy=xiaomi policy.prefix_max=4": "policy.prefix_max=6",
    "algorithm=chunk_critic learning.critic.chunk_ticks=17": "learning.critic.chunk_ticks to 16",
    "algorithm=residual_ppo learning.ppo.chunk_ticks=17 exploration=0.1": "learning.ppo.chunk_ticks to 16",
}


def _refused_by_train(settings: str, folder: Path) -> str:
    run = trained_run(folder, *settings.split())
    return f"{run.path} was trained"


for _settings, _remedy in _TOO_LONG.items():
    trap(_HORIZON, f"train with {_settings} and chunks of 16 actions", _remedy)(partial(_refused_by_train, _settings))


@trap(_HORIZON, "eval of a run that was made with execution.execute_ticks=100", remedy="execution.execute_ticks to 16")
def _refused_by_eval(folder: Path) -> str:
    run = untrained_run(folder / "run", "execution.execute_ticks=100")
    return printed_by("eval", run.path)


@trap(_HORIZON, "rollout of a policy with execution.execute_ticks=100", remedy="execution.execute_ticks to 16")
def _refused_by_rollout(folder: Path) -> str:
    run = untrained_run(folder / "run")
    return printed_by("rollout", run.path, "--robot", "sim", "execution.execute_ticks=100")


@trap(_HORIZON, "rollout of a policy on its own whose chunks are shorter than the default of execute_ticks")
def _short_chunks(folder: Path) -> str:
    run = untrained_run(folder / "run", "policy.horizon=4")
    config = resolve_config(find_policy(run.policy(0)))
    expect(config.execution.execute_ticks == 4, f"execute_ticks is {config.execution.execute_ticks}")
    return f"execute_ticks is {config.execution.execute_ticks}"


_EXTENDED = "a finished run with a larger budget"
_SMALL = (
    "policy.vision.widths=[8,16]",
    "policy.expert.width=32",
    "policy.expert.layers=1",
    "learning.actor.batch_size=8",
)


def _finetuned(folder: Path, steps: int) -> RunFolder:
    """Fine-tune a new policy for so many gradient steps on two demonstrations."""
    store = EpisodeStore(folder / "demonstrations")
    for number in range(2):
        store.add(demonstration(number))
    data = ["--data", store.path, "--out", folder / "run", "--algorithm", "sft"]
    printed_by("finetune", *data, f"steps={steps}", "learning.actor.warmup_steps=2", *_SMALL)
    return RunFolder(folder / "run")


def _weights(policy: Path) -> str:
    return next(file.name for file in policy.glob("model-*.safetensors"))


@trap(_EXTENDED, "a fine-tune of 3 gradient steps, resumed with steps=6")
def _more_steps(folder: Path) -> str:
    whole, run = _finetuned(folder / "whole", 6), _finetuned(folder / "cut", 3)
    before = _weights(run.policy(1))
    printed_by("finetune", "--resume", run.path, "steps=6")
    expect(_weights(run.policy(1)) == _weights(whole.policy(1)), "it is not the policy of 6 steps in one go")
    kept = run.policies / "after_step_00000003"
    expect(_weights(kept) == before, "the policy of 3 steps is lost")
    return f"{_weights(run.policy(1))} as in one go; {before} stays in {kept.name}"


@trap(_EXTENDED, "a finished fine-tune whose config.yaml was edited to steps=6")
def _edited_steps(folder: Path) -> str:
    run = _finetuned(folder, 3)
    before = _weights(run.policy(1))
    run.config_file.write_text(run.config_file.read_text().replace("steps: 3", "steps: 6"))
    printed_by("finetune", "--resume", run.path)
    expect(_weights(run.policy(1)) != before, "nothing was trained")
    return f"{before} and then {_weights(run.policy(1))}"


@trap(_EXTENDED, "a finished fine-tune without its checkpoints, resumed with more steps", remedy="--policy")
def _no_checkpoint(folder: Path) -> str:
    run = _finetuned(folder, 3)
    shutil.rmtree(run.checkpoints)
    return printed_by("finetune", "--resume", run.path, "steps=6")


@trap(_EXTENDED, "a finished fine-tune, resumed with fewer steps", remedy="can only be extended")
def _fewer_steps(folder: Path) -> str:
    return printed_by("finetune", "--resume", _finetuned(folder, 3).path, "steps=2")


@trap(_EXTENDED, "a finished run, resumed with another learning rate", remedy="budget.rounds")
def _other_setting(folder: Path) -> str:
    return printed_by("train", "--resume", trained_run(folder).path, "learning.actor.learning_rate=1e-4")


@trap(_EXTENDED, "a training run without practice, resumed with budget.rounds=1")
def _more_rounds(folder: Path) -> str:
    whole, run = trained_run(folder / "whole", "budget.rounds=1"), trained_run(folder / "cut")
    printed_by("train", "--resume", run.path, "budget.rounds=1")
    expect(run.policy_versions() == [0, 1], f"policy versions are {run.policy_versions()}")
    expect(_weights(run.policy(1)) == _weights(whole.policy(1)), "it is not the policy of one round in one go")
    rates = [(entry["label"], entry["episodes"]) for entry in run.read_summary()["evaluations"]]
    return f"{_weights(run.policy(1))} as in one go; evaluated {rates}"
