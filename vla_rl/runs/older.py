"""Run folders of earlier versions: their configs in today's words. One function for each thing that changed.

Every algorithm once had the options of all, and every strategy those of all. What could not have had an effect goes
without a word, and so does an option that is gone if it was left at what the program does now. A run that was made with
another value cannot go on as it began, and is refused.
"""

from collections.abc import Collection
from typing import Any

from vla_rl.core.config import flatten, leaf_options
from vla_rl.core.registry import find
from vla_rl.core.retired import without

_VISION = {"widths": [16, 32], "kernels": [8, 3], "strides": [4, 1], "groups": 0, "shared": False}
_ENCODER = {"vision": {**_VISION, "keypoints": 48, "patches": 0}, "token_width": 64, "dropout": 0.0}
_SIZES = {"frames": 8, "width": 256, "layers": 4, "heads": 4, "denoise_steps": 16, "guidance": 1.0}
RETIRED: dict[str, Any] = {
    "learning": {
        "actor": {"final_fraction": 0.1, "weight_decay": 0.0001, "max_gradient_norm": 1.0},
        "mixture": {"episodes_equal": False, "skip_failures": True},
        "credit": {"demonstrations_train_efficiency": True},
        "critic": {**_ENCODER, "feature_width": 128, "max_steps": 0, "huber_delta": 1.0},
        "critic_training": {
            "replay_ratio": {"adaptive": False},
            "weight_decay": 0.01,
            "max_gradient_norm": 10.0,
            "balanced": False,
            "efficiency_only": 0.25,
        },
        "advantage": {"intervention_reweight": False, "smallest_mean": 0.001},
        "recap": {"critic": _ENCODER},
        "next_latent": {"weight": 0.0},
    },
    "latency": {
        "warm_up": 0.0,
        "drop_probability": 0.0,
        "duplicate_probability": 0.0,
        "reorder_probability": 0.0,
        "stall_probability": 0.0,
        "stall": 0.0,
    },
    "takeover": {
        "options": {
            "setback": 0.12,
            "repaired": 0.08,
            "noise_m": 0.003,
            "fumble_m": 0.012,
            "fumble_s": 1.0,
            "max_step_m": 0.03,
        }
    },
    "imagination": {
        "coevolution": {"first_round": 1, "refine_cpu_seconds": 0.0},
        "starts": {"keyframe_rule": "uniform", "versions": 1, "keyframe_fraction": 0.0},
        "trajectories": {**_SIZES, "success_weight": 1.0, "steps": 1500, "batch_size": 64, "learning_rate": 0.001},
        "group": {
            "group": 8,
            "mask_after_success": True,
            "learning_rate": 3e-5,
            "clip_low": 0.2,
            "clip_high": 0.28,
            "normalise": False,
            "epochs": 2,
            "lowest_success": 0.1,
            "highest_success": 0.9,
            "max_gradient_norm": 1.0,
        },
        "group_updates": 0,
        "groups_at_once": 2,
        "flow_noise": 0.05,
        "generator": "rollouts",
    },
}
"""Options that are gone, and what the program does now instead of asking: their defaults of then. Those of a policy
stand beside its config.
"""

# Nothing read these unless one of the above was not at its default.
_DETAILS = {f"critic_training.replay_ratio.{name}" for name in ("low", "high", "check_every_episodes", "tolerance")}
_DETAILS |= {"next_latent.ahead", "next_latent.hidden", "next_latent.learning_rate"}
_FOR_EVERY_ALGORITHM = ("mixture.episodes_equal", "next_latent.weight")
_STRATEGIES_OF_THEN = ("training_time_prefix", "temporal_ensembling", "sync")
_ALGORITHMS_OF_THEN = ("habc", "awr", "threshold", "recap")


def is_finetuning(raw: dict[str, Any]) -> bool:
    """Whether the config of a run folder, as plain data, is one of offline fine-tuning: it names data, and no task."""
    return "data" in raw and "task" not in raw


def upgrade(raw: dict[str, Any]) -> dict[str, Any]:
    """Today's form of the config of a run of any version, as plain data; one of today stays as it is.

    Raises:
        ConfigError: for an option that this version does not have any more, and that was set to something else than
            what the program does now.
    """
    for change in _CHANGES:
        raw = change(raw)
    return raw


def _supervisor_by_name(raw: dict[str, Any]) -> dict[str, Any]:
    """There was one supervisor, the scripted one, whose section was called ``takeover.corrector``."""
    takeover = raw.get("takeover") or {}
    if "corrector" not in takeover:
        return raw
    kept = {key: value for key, value in takeover.items() if key != "corrector"}
    return {**raw, "takeover": {**kept, "supervisor": "scripted", "options": takeover["corrector"]}}


def _own_options_of_algorithms(raw: dict[str, Any]) -> dict[str, Any]:
    """The sections ``learning`` and ``supervised`` held the options of all algorithms."""
    others = _of(_ALGORITHMS_OF_THEN, "algorithms")
    for name, algorithm in (("learning", raw.get("algorithm", "habc")), ("supervised", "sft")):
        section = raw.get(name)
        if not isinstance(section, dict):
            continue
        known = {*leaf_options(find("algorithms", algorithm).config_class)}
        sections = {path.partition(".")[0] for path in known}
        gone = flatten(RETIRED["learning"])
        gone["critic_training.random_shift"] = section.get("actor", {}).get("random_shift", 3)  # now one for both
        had_effect = {
            path: default
            for path, default in gone.items()
            if path.partition(".")[0] in sections or path in _FOR_EVERY_ALGORITHM
        }
        raw = {**raw, name: without(section, {*gone, *_DETAILS, *others} - known, had_effect, f"{name}.")}
    return raw


def _own_options_of_strategies(raw: dict[str, Any]) -> dict[str, Any]:
    """The section ``execution`` held the options of all strategies."""
    section = raw.get("execution")
    if not isinstance(section, dict):
        return raw
    known = leaf_options(find("strategies", section.get("strategy", "naive")).config_class)
    return {**raw, "execution": without(section, _of(_STRATEGIES_OF_THEN, "strategies") - {*known}, {}, "execution.")}


def _fewer_options_of_policies(raw: dict[str, Any]) -> dict[str, Any]:
    """What a policy's own config says of its earlier versions."""
    section = raw.get("policy")
    if not isinstance(section, dict):
        return raw
    upgrade_policy = getattr(find("policies", section.get("kind", "flow_vla")).config_class, "upgrade", None)
    return {**raw, "policy": upgrade_policy(section)} if upgrade_policy else raw


def _fewer_options_of_supervisors(raw: dict[str, Any]) -> dict[str, Any]:
    """The scripted supervisor's hand had an option for everything."""
    section = raw.get("takeover")
    if not isinstance(section, dict) or section.get("supervisor") != "scripted" or not section.get("options"):
        return raw
    gone = flatten(RETIRED["takeover"])
    enabled = section.get("enabled", True)
    return {**raw, "takeover": without(section, gone, gone if enabled else {}, "takeover.")}


def _no_faults_in_practice(raw: dict[str, Any]) -> dict[str, Any]:
    """Practice could lose, double or delay answers on purpose."""
    section, gone = raw.get("latency"), RETIRED["latency"]
    return {**raw, "latency": without(section, gone, gone, "latency.")} if isinstance(section, dict) else raw


def _fewer_options_of_imagination(raw: dict[str, Any]) -> dict[str, Any]:
    """Imagination had an option for everything, without effect in a run that does not imagine."""
    section = raw.get("imagination")
    if not isinstance(section, dict):
        return raw
    gone = flatten(RETIRED["imagination"])
    imagines = section.get("coevolution", {}).get("mode", "off") != "off"
    drop = {*gone, "starts.lead_steps", "starts.fall_steps"}  # the last two are read by a rule that is refused
    had_effect = gone if imagines else {}
    if not section.get("group_updates"):  # nothing read the others
        had_effect = {path: default for path, default in had_effect.items() if not path.startswith("group")}
    return {**raw, "imagination": without(section, drop, had_effect, "imagination.")}


def _taught_nothing(raw: dict[str, Any]) -> dict[str, Any]:
    """`imagined_edit` left the policy as it was."""
    section = raw.get("learning")
    if raw.get("algorithm") != "imagined_edit" or not isinstance(section, dict) or "teach_steps" in section:
        return raw
    return {**raw, "learning": {**section, "teach_steps": 0}}


def _of(parts: Collection[str], kind: str) -> set[str]:
    """The options that any of these parts has."""
    return {path for name in parts for path in leaf_options(find(kind, name).config_class)}


_CHANGES = (
    _supervisor_by_name,
    _own_options_of_algorithms,
    _own_options_of_strategies,
    _fewer_options_of_policies,
    _fewer_options_of_supervisors,
    _no_faults_in_practice,
    _fewer_options_of_imagination,
    _taught_nothing,
)
