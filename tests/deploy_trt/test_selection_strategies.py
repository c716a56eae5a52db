"""A policy that chooses among its draws, in torch and deployed, under every execution strategy: the chosen chunk
acts, or the strategy is refused before anything starts.
"""

import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from choosers import choosing, make_selector, save_choosing
from tiny_policy import SPEC, make_model, make_observation

from deploy_trt.export import export_flow_vla
from deploy_trt.runtime import load_manifest
from deploy_trt.runtime.manifest import save_manifest
from vla_rl.acting.capability import best_strategy, check_strategy
from vla_rl.acting.policy_folder import find_policy, load_acting_policy
from vla_rl.core.errors import ConfigError
from vla_rl.core.types import ActionChunk, Float32Array, Observation
from vla_rl.execution.executor import Executor
from vla_rl.execution.inference_process import MessageLayout, ProcessPlanner
from vla_rl.execution.plan import InlinePlanner, Plan, PlanRequest
from vla_rl.execution.strategies import execution_config, make_planning_strategy
from vla_rl.execution.strategies.base import ExecutionConfig
from vla_rl.policies.best_of_n import BestOfN
from vla_rl.policies.flow_vla import ExpertConfig, FlowVLA, FlowVLAPolicy
from vla_rl.policies.named import load_named

pytestmark = pytest.mark.slow
SAME = 1e-5
WORKS = ("sync", "naive", "temporal_ensembling", "rtc", "rtc_identity", "training_time_prefix", "vlash", "a2c2")
REFUSED = {"deployment": ("rtc", "vlash", "xiaomi", "a2c2"), "policy": ("vlash", "xiaomi", "a2c2")}


@pytest.fixture(scope="module")
def folders(
    model: FlowVLA, selector: BestOfN, exported_choosing: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    return {
        "policy": save_choosing(tmp_path_factory.mktemp("torch") / "policy", model, selector),
        "deployment": exported_choosing,
    }


def request(scheduled: int, delay: int) -> PlanRequest:
    """With so many actions scheduled, of which some will have been executed."""
    actions = np.random.default_rng(1).normal(size=(scheduled, 2)).astype(np.float32)
    return PlanRequest(0, make_observation(2, 12), actions, delay, np.zeros(2, np.float32))


@pytest.mark.parametrize(
    ("kind", "name"),
    [("policy", name) for name in WORKS] + [("deployment", name) for name in WORKS if name != "rtc"],
)
def test_every_strategy_executes_the_chosen_chunk(
    folders: dict[str, Path], model: FlowVLA, selector: BestOfN, kind: str, name: str
) -> None:
    """Torch with its selector is the reference; the plain policy gives another chunk."""
    options = {"max_prefix_ticks": 4} if name == "training_time_prefix" else {}
    asked = request(6, 2)
    chunk = chosen_chunk(folders[kind], model, selector, execution_config(name, **options), asked)
    if name == "training_time_prefix":
        np.testing.assert_array_equal(chunk[:2], asked.scheduled[:2])


def chosen_chunk(
    folder: Path, model: FlowVLA, selector: BestOfN, execution: ExecutionConfig, asked: PlanRequest
) -> Float32Array:
    """What is planned for a request: that which torch with its selector plans, and not what the plain policy does."""
    strategy = make_planning_strategy(execution)
    chunks = [
        strategy.infer(policy, asked).actions
        for policy in (load_acting_policy(folder), choosing(model, selector), FlowVLAPolicy(model))
    ]
    np.testing.assert_allclose(chunks[0], chunks[1], atol=SAME)
    assert np.abs(chunks[0] - chunks[2]).max() > 0.05
    return chunks[0]


@pytest.mark.parametrize("kind", ["policy", "deployment"])
def test_xiaomi_executes_the_chosen_chunk_of_a_policy_that_was_trained_for_it(kind: str, tmp_path: Path) -> None:
    """Every candidate goes on from the fixed prefix, whatever the delay."""
    single = ExpertConfig(width=32, layers=2, heads=2, actions_per_token=1)
    model = make_model(discrete_dims=(1,), prefix_max=4, prefix_law="xiaomi", sampling_steps=3, expert=single)
    selector = make_selector(model)
    folder = save_choosing(tmp_path / "policy", model, selector)
    if kind == "deployment":
        export_flow_vla(model, tmp_path / "deployment", {"policy_version": 3}, policy_folder=folder)
        folder = tmp_path / "deployment"
    found = find_policy(folder)
    assert best_strategy(found) == ("execution.strategy=xiaomi", "execution.max_prefix_ticks=4")
    execution, asked = execution_config("xiaomi", max_prefix_ticks=4), request(6, 2)
    check_strategy(execution, found)
    chunk = chosen_chunk(folder, model, selector, execution, asked)
    np.testing.assert_array_equal(chunk[:4], asked.scheduled[:4])


@pytest.mark.parametrize("kind", ["policy", "deployment"])
def test_what_a_folder_cannot_do_is_refused_before_anything_starts(folders: dict[str, Path], kind: str) -> None:
    policy = find_policy(folders[kind])
    for name in {*WORKS, "xiaomi"} - {*REFUSED[kind]}:
        check_strategy(execution_config(name), policy)
    for name in REFUSED[kind]:
        with pytest.raises(ConfigError, match=r"What fits: .*strategy=naive.*strategy=training_time_prefix") as caught:
            check_strategy(execution_config(name), policy)
        assert "\n" not in str(caught.value)


def test_a_deployment_can_do_what_its_manifest_provides(exported_choosing: Path, tmp_path: Path) -> None:
    assert best_strategy(find_policy(exported_choosing)) == (
        "execution.strategy=training_time_prefix",
        "execution.max_prefix_ticks=4",
    )
    manifest = load_manifest(exported_choosing)
    for provides, fits, refused in (
        (("future_state", "guidance", "prefix", "xiaomi_prefix"), ("vlash", "xiaomi", "rtc_identity"), "rtc"),
        (("prefix",), ("training_time_prefix",), "rtc_identity"),
        ((), ("naive",), "training_time_prefix"),
    ):
        save_manifest(tmp_path, replace(manifest, provides=provides))
        policy = find_policy(tmp_path)
        for name in fits:
            check_strategy(execution_config(name), policy)
        with pytest.raises(ConfigError, match=f"strategy={refused} requires"):
            check_strategy(execution_config(refused), policy)
    assert policy.prefix_ticks == 0


@pytest.mark.parametrize("kind", ["policy", "deployment"])
def test_the_inference_process_gives_the_chosen_chunk(
    folders: dict[str, Path], model: FlowVLA, selector: BestOfN, kind: str
) -> None:
    config = execution_config("training_time_prefix", max_prefix_ticks=4)
    cameras = tuple((camera, *SPEC.image_size) for camera in SPEC.cameras)
    layout = MessageLayout(cameras, SPEC.state_dim, SPEC.action_dim, model.horizon)
    reference, asked, strategy = choosing(model, selector), request(6, 2), make_planning_strategy(config)
    with ProcessPlanner(partial(load_acting_policy, folders[kind]), layout, config) as planner:
        planner.reset(42)
        planner.request(asked, strategy)
        deadline_s, plans = time.monotonic() + 30, list[Plan]()
        while not plans and time.monotonic() < deadline_s:
            plans = planner.poll()
            time.sleep(0.002)
    reference.reset(42)
    np.testing.assert_allclose(plans[0].chunk.actions, strategy.infer(reference, asked).actions, atol=SAME)


@pytest.mark.parametrize("kind", ["policy", "deployment"])
def test_a_server_gives_the_chosen_chunk(
    folders: dict[str, Path], model: FlowVLA, selector: BestOfN, kind: str
) -> None:
    """Critic and residual choose behind `vla-rl serve` as they do here, for two clients in turns."""
    pytest.importorskip("websockets", reason="needs the extra serve")
    from benchmarks.any_policy.faults import in_thread
    from vla_rl.acting.serve import PolicyServer

    reference, asked, guided = choosing(model, selector), request(6, 2), execution_config("rtc_identity")
    with in_thread(PolicyServer(find_policy(folders[kind]))) as url:
        clients = [load_named(url), load_named(url)]
        for name in (guided, execution_config("training_time_prefix", max_prefix_ticks=4), execution_config("naive")):
            strategy = make_planning_strategy(name)
            for seed, client in enumerate(clients, 42):
                reference.reset(seed)
                client.reset(seed)
                expected = strategy.infer(reference, asked).actions
                np.testing.assert_allclose(strategy.infer(client, asked).actions, expected, atol=SAME)
        for client in clients:
            client.close()  # type: ignore[attr-defined]


class Pushing:
    """A residual head that adds one and the same to every action."""

    def correct(
        self, observation: Observation, action: Float32Array, chunk_index: int, discrete_dims: tuple[int, ...]
    ) -> Float32Array:
        del observation, chunk_index, discrete_dims
        return action + np.float32([0.25, 0.0])


def test_a_residual_head_corrects_the_chosen_chunk(folders: dict[str, Path]) -> None:
    """An attempt with a2c2: what is sent is what was chosen, corrected."""
    policy = load_acting_policy(folders["deployment"])
    chunks: list[ActionChunk] = []
    infer = policy.infer

    def kept(*arguments: object) -> ActionChunk:
        chunks.append(infer(*arguments))  # type: ignore[arg-type]
        return chunks[-1]

    policy.infer = kept  # type: ignore[method-assign]
    executor = Executor(InlinePlanner(policy), execution_config("a2c2", execute_ticks=4), Pushing())
    executor.reset(0, np.zeros(2, np.float32))
    for tick in range(8):
        chosen = executor.propose(make_observation(tick, tick), 0)
        newest = chunks[-1]
        np.testing.assert_allclose(
            chosen.action, newest.actions[tick - newest.start_tick] + np.float32([0.25, 0.0]), atol=1e-6
        )
        executor.sent(chosen.action)
    assert len(chunks) == 2
