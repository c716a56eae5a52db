"""The public functions of the package; `import vla_rl as vla` imports each of them on first use.

Wherever a function takes a policy, the caller gives the object or its folder. A run folder stands for its newest
policy. Wherever a function takes an environment, the caller gives the result of `make_env` or the name of a task.
"""

import functools
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from vla_rl.acting.attempt import check_finite
from vla_rl.acting.demonstrations import check_kept
from vla_rl.acting.env import AnyEnv, as_env
from vla_rl.acting.policy_folder import AnyPolicy, on_disk, opened
from vla_rl.acting.task_config import TaskConfig
from vla_rl.core.config import config_to_dict, load_config, override_items
from vla_rl.core.config_files import config_file, read_yaml
from vla_rl.core.errors import UserError, missing_extra
from vla_rl.core.progress import track
from vla_rl.core.protocols import Policy
from vla_rl.core.types import Float32Array, Origin
from vla_rl.data.episode_header import EpisodeHeader
from vla_rl.data.run_folder import RunFolder, run_of
from vla_rl.data.sources import lasting_folder
from vla_rl.data.store import EpisodeStore
from vla_rl.execution.sources import Demonstrator
from vla_rl.policies.named import is_name
from vla_rl.report.outcomes import Comparison, Outcomes, metrics_of
from vla_rl.training import plan
from vla_rl.training.run import check_same

if TYPE_CHECKING:
    from vla_rl.acting.task import SimulatorSetup
    from vla_rl.policies.trainable import TrainablePolicy
    from vla_rl.training.config import RunConfig

_ATTEMPTS = 20  # seeds per demonstration before the expert counts as failing
_PAIRS = 16  # seeds that both policies of a comparison play before the comparison is looked at again


def collect_demonstrations(
    env: AnyEnv,
    episodes: int,
    *,
    expert: Callable[[Any], Float32Array] | None = None,
    seed: int = 0,
    out: str | Path | None = None,
) -> EpisodeStore:
    """Record demonstrations until an expert has succeeded in the given number of episodes.

    Args:
        env: Task to demonstrate.
        episodes: Number of successful episodes.
        expert: Function of the unwrapped Gymnasium environment that returns the action to send, float32 [A]. Default:
            the expert that the environment's class declares.
        seed: Seed of the start states, 0 to 999.
        out: Folder of the episode store. Episodes already in it are kept, whatever expert, seed and difficulty they are
            of. Default: a temporary folder, deleted when the process ends.

    Returns:
        Store with the demonstrations, ``demo-00000`` and so on.

    Raises:
        UserError: If the task has no expert, the expert fails 20 times in a row, or the seed is not from 0 to 999. Also
            if the store holds episodes of another task, control rate or picture size.

    Example:
        >>> demos = collect_demonstrations(env, episodes=2, expert=lambda dot: dot.goal)
        >>> all(episode.success for episode in demos)
        True
    """
    env = as_env(env)
    simulator, store = env.simulator, EpisodeStore(lasting_folder() if out is None else Path(out))
    source = simulator.demonstrator() if expert is None else _demonstrator(simulator, expert)
    names = [f"demo-{index:05d}" for index in range(episodes)]
    check_kept(store, names, env.spec)
    for index, name in enumerate(track(names, "demonstrations", "episode")):
        for again in range(0 if name in store else _ATTEMPTS):
            start = plan.demonstration_seed(seed, index, again)
            _, episode = simulator.attempts.run(source, name, start, -1, origin=Origin.DEMO)
            if episode.success:
                store.add(episode)
                break
        if name not in store:
            doubt = simulator.robot.judge.doubt
            remedy = f". The task {doubt}" if doubt else "; make the task easier"
            raise UserError(f"the expert of {env.task.env} failed {_ATTEMPTS} times in a row{remedy}")
    return store


def train(
    policy: "TrainablePolicy | Policy",
    *data: EpisodeStore | str | Path,
    algorithm: str = "sft",
    steps: int = 600,
    out: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, float]:
    """Train a policy in place on episodes alone, without a simulator.

    Args:
        policy: Policy to train. Training replaces its weights at the end. It drops the policy's critic and residual,
            which were trained for the old weights.
        data: One or several sources of episodes: stores, or paths of stores, runs, LeRobotDatasets or ROS 2 bags.
        algorithm: Name of an entry point of ``vla_rl.algorithms``. ``sft`` imitates demonstrations only, ``bc``
            imitates every step, and ``habc`` weights steps by its critics.
        steps: Number of gradient steps. To imitate a few demonstrations, 200 for each were enough in our tests.
        out: Run folder. An interrupted training continues from it, if policy and episodes are those that it began with.
            Default: a temporary folder.
        settings: Changes to the config, such as ``{"learning.actor.batch_size": 64}``.

    Returns:
        Last logged value of each metric of the learner.

    Raises:
        UserError: If the episodes do not fit the policy, a setting is wrong, or ``out`` holds another run.

    Example:
        >>> train(policy, demos, algorithm="sft", steps=2, settings={"learning.actor.batch_size": 8})
        {'step': 2.0, 'actor_loss': ...}
    """
    from vla_rl.policies.acting import ActingPolicy
    from vla_rl.policies.folders import load_model
    from vla_rl.policies.trainable import TrainablePolicy
    from vla_rl.report.sinks import read_records
    from vla_rl.training.finetune import FinetuneConfig, check_origin, finetune, start_run

    if not isinstance(policy, ActingPolicy | TrainablePolicy):
        raise UserError(f"a {type(policy).__name__} cannot be trained in place; load it: vla_rl.load_policy(FOLDER)")
    if not data:
        raise UserError("train needs episodes: give a store, or the path of one, a run, a LeRobotDataset or a bag")
    paths = [str((source.path if isinstance(source, EpisodeStore) else Path(source)).absolute()) for source in data]
    with tempfile.TemporaryDirectory() as name, on_disk(policy) as start:
        path = Path(out) if out else Path(name, "run")
        actor = {"decay_steps": steps, "warmup_steps": min(100, max(1, steps // 4))}
        fixed = {"data": paths, "start": str(start), "algorithm": algorithm, "steps": steps}
        changes = {**{f"learning.actor.{key}": value for key, value in actor.items()}, **fixed, **(settings or {})}
        config = load_config(FinetuneConfig, config_file("finetune"), override_items(changes))
        if (path / "config.yaml").exists():
            folder, known = RunFolder.open(path, FinetuneConfig)
            check_same(known, config, path, but=("start",))
            check_origin(folder, config)
        else:
            folder = start_run(path, config)
        finetune(folder, config)
        trained, _ = load_model(folder.policy(1))
        if isinstance(policy, ActingPolicy):
            policy.selector, policy.folder = None, None
        model = policy.model if isinstance(policy, ActingPolicy) else policy
        model.load_state_dict(trained.state_dict())
        return metrics_of(read_records(folder.metrics_file), 1)


def evaluate(
    policy: AnyPolicy,
    env: AnyEnv,
    episodes: int = 100,
    *,
    seeds: Sequence[int] | None = None,
    strategy: str | None = None,
    latency: Mapping[str, Any] | float | None = None,
    render: bool = False,
    out: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Outcomes:
    """Evaluate a policy on held-out seeds.

    Args:
        policy: A model, a folder, a name (``openpi://HOST:PORT``, ``module:Name``), or any object with
            ``reset(seed)`` and ``infer(observation, committed)``.
        env: Task of the evaluation.
        episodes: Number of held-out seeds. Every call uses the same seeds, and training never uses them.
        seeds: Reset seeds that replace the held-out seeds. ``episodes`` is then ignored.
        strategy: Name of an execution strategy. Default: the strategy of the policy's run, else ``sync``.
        latency: Simulated inference latency: a number of ticks, or the fields of
            `vla_rl.execution.virtual.LatencyConfig`.
        render: Whether to keep the images of every step, for `Outcomes.film`.
        out: Episode store. The evaluation reuses its episodes of the same policy and settings if the policy is a
            folder or a model. Any other policy may have changed, and plays again. Default: a temporary folder, deleted
            when the process ends.
        settings: Further changes to the config of a run, such as ``{"execution.execute_ticks": 4, "workers": 2}``.

    Returns:
        Success and length (in steps) of each episode, with the success rate and its 95 % Wilson interval.

    Raises:
        UserError: If the policy does not fit the task, plans no finite action, a seed is given twice, or a setting is
            wrong.

    Example:
        >>> print("success", evaluate("runs/dot", env, episodes=4))
        success .../4 = ... % [..., ...]
    """
    if seeds is not None:
        seeds = [_seed(each) for each in seeds]
    count = episodes if seeds is None else len(seeds)
    if count < 1 or (seeds is not None and len({*seeds}) < count):
        raise UserError("there is no episode to evaluate, or a seed is named twice: give episodes >= 1, or other seeds")
    path = Path(out) if out else lasting_folder()
    with _evaluation(policy, env, count, path, _changes(strategy, latency, settings), seeds, render) as play:
        return play(count)


def compare(
    a: AnyPolicy,
    b: AnyPolicy,
    env: AnyEnv,
    episodes: int = 400,
    *,
    error: float = 0.05,
    strategy: str | None = None,
    latency: Mapping[str, Any] | float | None = None,
    out: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Comparison:
    """Compare two policies on the same held-out seeds, and stop as soon as the better one is known.

    Both policies play 16 seeds at a time. Only seeds on which one policy succeeds and the other one fails count.

    Args:
        a: First policy, as of `evaluate`.
        b: Second policy.
        env: Task of the comparison.
        episodes: Largest number of held-out seeds.
        error: Largest probability of a decision if both policies succeed equally often, however early it comes.
        strategy: Execution strategy of both policies, as of `evaluate`.
        latency: Simulated inference latency of both policies, as of `evaluate`.
        out: Episode store, as of `evaluate`.
        settings: Further changes to the configs of both runs, as of `evaluate`.

    Returns:
        Outcomes of both policies, the better one (or None), the discordant pairs and the confidence.

    Raises:
        UserError: If a policy does not fit the task, or a setting is wrong.

    Example:
        >>> comparison = compare("runs/dot", policy, env, episodes=4)
        >>> print(comparison.better, len(comparison.a.seeds))
        None 4
    """
    if episodes < 1 or not 0 < error < 1:
        raise UserError(f"episodes is {episodes} and error {error}; expected episodes >= 1 and error between 0 and 1")
    path, changes, env = Path(out) if out else lasting_folder(), _changes(strategy, latency, settings), as_env(env)
    with (
        _evaluation(a, env, episodes, path, changes) as play_a,
        _evaluation(b, env, episodes, path, changes) as play_b,
    ):
        for end in range(_PAIRS, episodes + _PAIRS, _PAIRS):
            comparison = Comparison(play_a(end), play_b(end), error)
            if comparison.better:
                break
    return comparison


def export(policy: AnyPolicy, out: str | Path, precision: Literal["fp32", "fp16", "bf16"] = "fp32") -> Path:
    """Export a policy, with its critic and residual, to run on ONNX Runtime or TensorRT without torch.

    Args:
        policy: A trained policy or its folder.
        out: Deployment folder to write.
        precision: Precision of weights and activations.

    Returns:
        Path of the deployment folder, for `load_policy` and ``vla-rl rollout``.

    Raises:
        UserError: If the policy cannot be exported, or the extra ``trt`` is not installed.

    Example:
        >>> deployment = export("runs/dot", "deployments/dot")
        >>> load_policy(deployment).spec.action_dim
        2
    """
    from deploy_trt.export import export_policy

    with on_disk(policy) as folder:
        if folder is None:
            what = policy if is_name(policy) else f"a {type(policy).__name__}"
            raise UserError(f"{what} cannot be exported; give a trained policy or its folder")
        try:
            export_policy(folder, Path(out), precision)
        except ModuleNotFoundError as error:
            if missing := missing_extra(error, "export"):
                raise UserError(missing) from error
            raise
    return Path(out)


def _demonstrator(simulator: "SimulatorSetup", expert: Callable[[Any], Float32Array]) -> Demonstrator:
    size = simulator.robot.actions.size

    def act() -> tuple[Float32Array, Float32Array]:
        found = expert(simulator.robot.env.unwrapped)
        action = np.asarray(found, np.float32)
        if action.shape != (size,) or not np.isfinite(action).all():
            raise UserError(f"the expert returned {found!r}; expected {size} finite numbers, float32 [{size}]")
        return action, action

    return Demonstrator(act)


def _seed(given: object) -> int:
    if not isinstance(given, int | np.integer) or given < 0:
        raise UserError(f"seeds are integers from 0 on, found is {given!r}")
    return int(given)


def _changes(
    strategy: str | None, latency: Mapping[str, Any] | float | None, settings: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the changes to a config that the arguments of an evaluation mean."""
    section = latency if isinstance(latency, Mapping) else {} if latency is None else {"typical": float(latency)}
    named = {} if strategy is None else {"execution.strategy": strategy}
    return {**(settings or {}), **named, **{f"latency.{key}": value for key, value in section.items()}}


@contextmanager
def _evaluation(
    policy: AnyPolicy,
    env: AnyEnv,
    episodes: int,
    out: Path,
    changes: Mapping[str, Any],
    seeds: Sequence[int] | None = None,
    render: bool = False,
) -> Iterator[Callable[[int], Outcomes]]:
    """Yield a function of a number of episodes. It plays what is missing of the first ones and returns their outcomes.

    The policy acts with the changed config; other arguments as of `evaluate`.
    """
    from vla_rl.training.evaluation import evaluation_jobs, run_missing, shares_not_finite, with_pictures
    from vla_rl.training.jobs import held_out_jobs
    from vla_rl.training.practice import make_pool
    from vla_rl.training.simulator import SimulatorWorker
    from vla_rl.training.workers import RolloutPool, Rollouts

    with opened(policy) as policy, on_disk(policy) as folder:
        config = _acting_config(policy, as_env(env).task, changes)
        if folder is None:
            call = f"evaluation-{secrets.token_hex(4)}"  # objects do not share episodes: they may differ
            jobs = held_out_jobs(call, config.task.envs, out, out, episodes)
            build = functools.partial(SimulatorWorker, config, policy=cast(Policy, policy))
            workers: Rollouts = RolloutPool(build, workers=0)
        else:
            jobs = evaluation_jobs(config, folder, out, episodes)
            workers = make_pool(config)
        if seeds is not None:
            stems = [job.episode_id.rpartition("-")[0] for job in jobs]
            jobs = [
                replace(job, seeds=(seed,), episode_id=f"{stem}-seed-{seed}")
                for job, seed, stem in zip(jobs, seeds, stems, strict=True)
            ]
        store = EpisodeStore(out)
        jobs = with_pictures(jobs, store) if render else [replace(job, pictures=False) for job in jobs]
        headers: list[EpisodeHeader] = []
        shares: list[float] = []
        with workers as pool:

            def play(count: int) -> Outcomes:
                headers.extend(run_missing(pool, jobs[len(headers) : count], "evaluate"))
                shares.extend(shares_not_finite(store, headers[len(shares) :]))
                check_finite(shares)
                rows = ((each.seed, each.success is True, each.length, each.env_id) for each in headers)
                starts, success, lengths, tasks = zip(*rows, strict=True)
                wrong = tuple(seed for seed, share in zip(starts, shares, strict=True) if share)
                names = tuple(each.episode_id for each in headers)
                return Outcomes(starts, success, lengths, tasks, store, wrong, names)

            yield play


def _acting_config(policy: AnyPolicy, task: TaskConfig, changes: Mapping[str, Any]) -> "RunConfig":
    """Return the config of the policy's run. A policy without a run gets the preset `alone`."""
    from vla_rl.training.config import RunConfig

    path = Path(policy) if isinstance(policy, str | Path) else getattr(policy, "folder", None)
    folder = None if path is None else run_of(path)
    run: Mapping[str, Any] = {} if folder is None else read_yaml(folder / "config.yaml")
    acting = {name: run[name] for name in ("policy", "execution", "latency", "gate") if name in run}
    base = {**read_yaml(config_file("alone")), **acting, "task": config_to_dict(task), "workers": 0}
    return load_config(RunConfig, None, override_items(changes), base)
