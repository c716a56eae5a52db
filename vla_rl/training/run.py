"""A run folder as an object: practice that can be resumed, and the results that a run holds."""

import html
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vla_rl.acting.demonstrations import check_fit, fitted
from vla_rl.acting.env import AnyEnv, Env, as_env
from vla_rl.acting.policy_folder import AnyPolicy, load_policy, on_disk
from vla_rl.core.cache_keys import cache_key
from vla_rl.core.config import config_to_dict, flatten, load_config, override_items
from vla_rl.core.config_files import config_file, read_yaml
from vla_rl.core.errors import UserError
from vla_rl.core.metadata import weights_in
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.protocols import Policy, Subscriber
from vla_rl.data.run_folder import RunFolder
from vla_rl.data.sources import load_episodes
from vla_rl.data.store import EpisodeStore, add_new
from vla_rl.policies.named import is_name
from vla_rl.report.outcomes import Outcomes, RoundResult, metrics_of
from vla_rl.training import plan

if TYPE_CHECKING:
    from vla_rl.outcomes.labeling import LabelConfig
    from vla_rl.report.run_files import Evaluation

logger = logging.getLogger(__name__)
_REMEDY = (
    "make the environment as it was then (make_env: image_size, declare). Or leave the episode out: vla-rl edit "
    "--leave-out"
)


class Practice:
    """Practice in rounds: the policy acts, is trained on the outcomes, and is evaluated on held-out seeds.

    The run folder holds the whole state. A new object with the same arguments continues the run.

    Args:
        policy: Initial policy. One that lacks what the algorithm requires stays frozen and gets a proxy
            (`vla_rl.policies.proxy`): a policy of lerobot, ``openpi://HOST:PORT`` or ``module:Name``.
        env: Task to practice.
        algorithm: Name of the training algorithm, an entry point of ``vla_rl.algorithms``.
        episodes_per_round: Number of episodes per round. From 64 on, 32 of them compare the new policy with and without
            its critic and residual (``budget.compare_episodes``). There is no comparison with ``imagined_edit``, with
            ``outcomes``, or if the algorithm makes neither critic nor residual.
        demonstrations: Episodes that stay in the training data, such as those that the policy was trained on. Their
            pictures are resized to the task's.
        out: Run folder.
        settings: Changes to the preset ``alone`` (``imagined`` for ``imagined_edit``), such as ``{"workers": 2,
            "budget.evaluation_episodes": 200}``.
        subscribers: Receivers of every metric and of sample episodes; see `vla_rl.core.protocols.Subscriber`.
        outcomes: Labels by a person and a success detector; see `vla_rl.outcomes.labeling.LabelConfig`. None: the
            outcomes of the environment.

    Raises:
        UserError: If the folder holds another run, or policy, task, demonstrations and settings do not fit each other.

    Example:
        >>> brief = {"budget.steps_per_round": 2, "learning.distill_steps": 0, "budget.evaluation_episodes": 2}
        >>> practice = Practice(policy, env, algorithm="chunk_critic", episodes_per_round=4, out="runs/brief",
        ...                     settings=brief)
        >>> for result in practice.rounds(1):
        ...     print(result, result.metrics["critic_loss"])
        round 1: .../2 = ... % [..., ...] ...
    """

    def __init__(
        self,
        policy: AnyPolicy,
        env: AnyEnv,
        *,
        algorithm: str = "residual_td",
        episodes_per_round: int = 150,
        demonstrations: EpisodeStore | str | Path | None = None,
        out: str | Path,
        settings: Mapping[str, Any] | None = None,
        subscribers: Sequence[Subscriber] = (),
        outcomes: "LabelConfig | None" = None,
    ) -> None:
        from vla_rl.policies.folders import load_model
        from vla_rl.policies.trainable import summary_for
        from vla_rl.training.config import RunConfig
        from vla_rl.training.practice import can_compare, check_config

        self._subscribers, task = subscribers, as_env(env).task
        store = load_episodes(demonstrations) if isinstance(demonstrations, str | Path) else demonstrations
        if store is not None and len(store):
            summary_for(store, as_env(env))  # refuses episodes of another robot
            for name in store.ids():
                check_fit(store.read_header(name), as_env(env).spec, _REMEDY)
        path = Path(out)
        with (
            _with_proxy(policy, algorithm, as_env(env), store, path, settings or {}) as (policy, base),
            on_disk(policy) as start,
        ):
            if start is None:
                raise UserError(
                    f"a {type(policy).__name__} cannot be trained. Give a trainable policy, its folder, or the name "
                    "of its class (module:Name), which then practices behind a proxy"
                )
            model, _ = load_model(start)
            own = {"task": config_to_dict(task), "policy": config_to_dict(model.config)}
            preset = read_yaml(config_file("imagined" if algorithm == "imagined_edit" else "alone"))
            begun = read_yaml(path / "config.yaml") if (path / "config.yaml").exists() else preset
            starts = begun.get("budget", {}).get("compare_episodes", 0)
            decides = any((settings or {}).get(f"budget.{name}") for name in ("check_episodes", "staleness"))
            if decides or outcomes is not None or not can_compare(algorithm):
                starts = 0
            fixed = {
                "algorithm": algorithm,
                "budget.episodes_per_round": episodes_per_round,
                "budget.compare_episodes": plan.fitting_comparison(starts, episodes_per_round),
                "budget.demonstrations": len(store) if store is not None else 0,
                "budget.supervised_steps": 1,  # the policy comes from elsewhere
                "budget.steps_per_demonstration": 0,
                "budget.rounds": 0,
                "workers": 0,
            }
            changes = override_items({**fixed, **(settings or {})})
            self.config: RunConfig = load_config(RunConfig, None, changes, {**preset, **own})
            self.config.learning.check_steps(self.config.budget.steps_per_round, "budget.steps_per_round")
            given = self.config  # names the base policy where it lies now
            if base is not None:
                moved = override_items({"policy.base": str(RunFolder(path).base)})
                self.config = load_config(RunConfig, None, moved, config_to_dict(given))
            if outcomes is not None:
                from vla_rl.training.round_labels import check_budget

                check_budget(self.config.budget)
            if (path / "config.yaml").exists():
                self.folder, known = RunFolder.open(path, RunConfig)
                check_same(known, self.config, path, but=("budget.rounds",))
                self.config = known
                self._spec = check_config(replace(given, budget=known.budget), has_demonstrations=True)
            else:
                self._spec = check_config(given, has_demonstrations=True, asks_base=True)
                self.folder = RunFolder.create(path, self.config)
            with self.folder:
                if base is not None:
                    _check_base(base, self.folder)  # another process may have begun the run since
                    self.folder.keep_base(base)
                    model.config = self.config.policy
                    model.save(start)
                self._begin(start, as_env(env).spec, store)
        if outcomes is not None:
            from vla_rl.training.round_labels import choose_labels

            choose_labels(self.folder, outcomes, self.config.budget)

    def _begin(self, start: Path, spec: PolicySpec, store: EpisodeStore | None) -> None:
        """Copy the demonstrations, fitted to the task, then the initial policy. Copies of a killed process stay."""
        if self.folder.policy_exists(0):
            if weights_in(start) != weights_in(self.folder.policy(0)):
                logger.warning("%s goes on with its own policy, which is not the one given", self.folder.path)
            return
        own = EpisodeStore(self.folder.episodes)
        if store is not None:
            shown = ((fitted(store.recorded(name), spec), store.edit_log(name)) for name in store.ids())
            add_new(own, ((replace(each, episode_id=f"demo-{i:05d}"), log) for i, (each, log) in enumerate(shown)))
        self.folder.keep_policy(0, start)

    def rounds(self, count: int) -> Iterator[RoundResult]:
        """Yield the result of each round: first the rounds in the folder, then new ones.

        An interruption loses at most the gradient steps since the last checkpoint.

        Args:
            count: Number of the last round, counted from the start of the run.

        Yields:
            Result of each round: the new policy, its evaluation and its metrics.
        """
        from vla_rl.training.practice import run_practice

        for number in range(1, count + 1):
            if not self.folder.is_finished() or self.config.budget.rounds < number:
                if self.config.budget.rounds < number:
                    self.config = replace(self.config, budget=replace(self.config.budget, rounds=number))
                    self.folder.extend(self.config)
                run_practice(self.folder, self.config, self._spec, self._subscribers)
            yield open_run(self.folder.path).results[number]

    def __repr__(self) -> str:
        return f"Practice({str(self.folder.path)!r}, rounds={self.config.budget.rounds})"


class Run:
    """Read the contents of a run folder; `open_run` opens it.

    Attributes:
        path: Run folder.
        config: Config of the run.
    """

    def __init__(self, path: Path) -> None:
        from vla_rl.training.config import RunConfig

        self._folder, self.config = RunFolder.open(path, RunConfig)
        self.path = path

    @property
    def policies(self) -> dict[int, Path]:
        """Folder of each policy, by version."""
        return {version: self._folder.policy(version) for version in self._folder.policy_versions()}

    def policy(self, version: int | None = None) -> Policy:
        """Load a policy of the run. Default: the newest version."""
        return load_policy(self.path, version)

    @property
    def env(self) -> Env:
        """New environment of the run's task."""
        return Env(self.config.task)

    @property
    def episodes(self) -> EpisodeStore:
        """Store of the demonstrations and practice episodes."""
        return EpisodeStore(self._folder.episodes, create=False)

    @property
    def held_out_seeds(self) -> list[int]:
        """Reset seeds of the run's evaluation."""
        return [plan.evaluation_seed(index) for index in range(self.config.budget.evaluation_episodes)]

    @property
    def results(self) -> list[RoundResult]:
        """Result of each round. The first entry is the initial policy."""
        from vla_rl.report.run_files import read_run

        run, policies = read_run(self.path), self.policies
        evaluations = {entry.round: entry for entry in run.policies if entry.outcomes}
        return [
            RoundResult(
                number,
                policies[number],
                _outcomes(evaluations[number]) if number in evaluations else None,
                metrics_of(run.metrics, number),
            )
            for number in sorted(policies)
        ]

    def values(self, episode_id: str) -> dict[str, np.ndarray]:
        """Estimate values at each step of an episode with the run's critics.

        Args:
            episode_id: Id of one of ``episodes``.

        Returns:
            Values by name, such as ``viability``, each float [T] for T steps.

        Raises:
            UserError: If the run has no such episode, or no checkpoint yet.
        """
        from vla_rl.data.cache import FrameCache
        from vla_rl.training.checkpoint import load_newest_checkpoint
        from vla_rl.training.practice import learner_of_run

        learner, _, _ = learner_of_run(self.path)
        cache = FrameCache(self.episodes, self._folder.cache)
        episode = next((episode for episode in cache.episodes if episode.episode_id == episode_id), None)
        progress = load_newest_checkpoint(self._folder.checkpoints)
        if episode is None or progress is None:
            missing = f"no episode {episode_id!r}" if episode is None else "no checkpoint yet"
            raise UserError(f"{self.path} has {missing}")
        learner.load_state_dict(progress[1])
        return learner.trace(cache, np.arange(episode.start, episode.start + episode.length))

    def _repr_html_(self) -> str:
        head = f"<b>{html.escape(str(self.path))}</b>, algorithm {self.config.algorithm}, {len(self.episodes)} episodes"
        return f"<div>{head}</div>{''.join(result._repr_html_() for result in self.results)}"

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, policies={[*self.policies]}, episodes={len(self.episodes)})"


def open_run(path: str | Path) -> Run:
    """Open a run folder to read its policies, episodes and results.

    Args:
        path: Run folder.

    Returns:
        Contents of the run: policies, task, episodes, held-out seeds, results and critic values.

    Raises:
        UserError: If the folder holds no run.

    Example:
        >>> run = open_run("runs/dot")
        >>> run.results[0].policy.name, sorted(run.values("round001-00000"))
        ('version_0000', ['discounted_value'])
    """
    return Run(Path(path))


@contextmanager
def _with_proxy(
    policy: AnyPolicy,
    algorithm: str,
    env: Env,
    demonstrations: EpisodeStore | None,
    run: Path,
    settings: Mapping[str, Any],
) -> Iterator[tuple[AnyPolicy, Path | None]]:
    """Yield the policy, behind a proxy if the algorithm requires more of it than it provides.

    The second value is the folder of a base policy that the run has yet to keep; None if there is none.
    """
    from vla_rl.core.capabilities import OF_RUNS
    from vla_rl.policies.folders import load_model
    from vla_rl.policies.proxy import ProxiedPolicy, ProxyConfig
    from vla_rl.training.algorithms import find_algorithm

    with on_disk(policy) as folder:
        base, new = folder, None
        if folder is not None:
            model, _ = load_model(folder)
            if find_algorithm(algorithm).requires - OF_RUNS <= model.capabilities:
                yield policy, None
                return
            if not isinstance(policy, str | Path):  # it was written for now
                base = new = folder.with_name("base")
                model.save(new)
        elif not is_name(policy):
            yield policy, None
            return
        if demonstrations is None:
            what = policy if isinstance(policy, str | Path) else f"a {type(policy).__name__}"
            raise UserError(
                f"{what} gets a proxy, whose scale comes from episodes; give demonstrations=, or episodes of the "
                "policy: evaluate(policy, env, seeds=range(8), render=True).store"
            )
        if new is not None and (kept := RunFolder(run).base).exists():
            _check_base(new, RunFolder(run))
            base, new = kept, None
        options = {name.removeprefix("policy."): each for name, each in settings.items() if name.startswith("policy.")}
        config = load_config(ProxyConfig, None, override_items(options), {"base": str(base or policy)})
        yield ProxiedPolicy.from_data(config, demonstrations, robot=env), new


def _check_base(given: Path, run: RunFolder) -> None:
    """Refuse another base policy than the one that a run keeps."""
    if run.base.exists() and cache_key(given) != cache_key(run.base):
        raise UserError(
            f"{run.path} practices with another base policy than the one given; give the earlier one, or name another "
            "folder (out=)"
        )


def _outcomes(evaluation: "Evaluation") -> Outcomes:
    def seeds(names: Iterable[str]) -> tuple[int, ...]:
        return tuple(int(name.rpartition(" ")[2]) for name in names)

    success = tuple(evaluation.outcomes.values())
    return Outcomes(seeds(evaluation.outcomes), success, not_finite=seeds(evaluation.not_finite))


def check_same(known: Any, asked: Any, path: Path, but: Sequence[str]) -> None:
    """Refuse to continue a run that has other settings."""
    ours, theirs = flatten(config_to_dict(asked)), flatten(config_to_dict(known))
    for key in sorted((ours.keys() | theirs.keys()) - {*but}):
        if ours.get(key) != theirs.get(key):
            raise UserError(
                f"{path} was begun with {key}={theirs.get(key)}, asked for is {ours.get(key)}; name another folder "
                "(out=), or ask for the same"
            )
