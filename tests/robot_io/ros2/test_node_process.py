"""The node as a process of its own: stopped for a while by the system, with the strategy that takes a head, and with a
policy that chooses among moved draws.
"""

from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.fakes.ros2_scripts import begin, ros_or_skip
from vla_rl.core.metadata import CRITIC_FOLDER
from vla_rl.core.normalization import Statistics
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.types import Episode, Origin, Source
from vla_rl.data.store import EpisodeStore
from vla_rl.policies.best_of_n import BestOfN, BestOfNConfig, ChunkCritic, ChunkCriticConfig
from vla_rl.policies.checkpoint import save_selector
from vla_rl.policies.corrector import FOLDER, ResidualCorrector
from vla_rl.policies.corrector_training import CorrectorConfig, train_corrector
from vla_rl.policies.flow_vla import ExpertConfig, FlowVLA, FlowVLAConfig, VisionConfig
from vla_rl.policies.residual import Residual, ResidualConfig

pytestmark = pytest.mark.slow

# A listener outside the node says what was commanded while the process stood still and after it woke up.
STOPPED = """
import json, os, signal, sys, time
import numpy as np
from trajectory_msgs.msg import JointTrajectory
from benchmarks.ros2_trials import TASK, TrialsConfig, make_rig

how, folder = sys.argv[1], sys.argv[2]
small = "difficulty=0.3&image_size=32"
config = TrialsConfig(folder, f"expert:sim:vla_rl/PegInsert-v0?{small}", lockstep=False,
                      env_options={"difficulty": 0.3, "image_size": 32})
with make_rig(config) as rig:
    heard = []
    rig.node.create_subscription(
        JointTrajectory, "arm_controller/joint_trajectory",
        lambda message: heard.append((time.monotonic(), list(message.points[-1].positions))), 100)
    assert rig.transition("configure") and rig.transition("activate")
    ticks = lambda: int(rig.status("attempts")[2].get("ticks", 0))
    begun = rig.wait(ticks, 90.0, "the first tick")
    rig.wait(lambda: ticks() >= begun + 15, 60.0, "fifteen ticks")
    # Between two ticks: within the middleware's own sending, one command would still follow.
    count = len(heard)
    rig.wait(lambda: len(heard) > count, 60.0, "a command")
    time.sleep(max(heard[-1][0] + 0.01 - time.monotonic(), 0.0))
    os.kill(rig.policy.process.pid, signal.SIGSTOP)
    time.sleep(float(how))
    os.kill(rig.policy.process.pid, signal.SIGCONT)
    woke_s = time.monotonic()
    rig.wait(lambda: rig.status("attempts")[0] == 2, 60.0, "the stop")
    time.sleep(0.5)
    # What was sent just before the stop is heard just after it.
    before = np.array([positions for at_s, positions in heard if at_s < woke_s][-10:])
    after = np.array([positions for at_s, positions in heard if at_s > woke_s]).reshape(-1, before.shape[1])
    said = {
        "heard": len(heard),
        "moving before": float(np.abs(np.diff(before, axis=0)).max()),
        "commands after": len(after),
        "moved after": float(np.abs(after - before[-1]).max(initial=0.0)),
        "why": rig.status("attempts")[1],
        "start": rig.trigger("start"),
    }
    count = len(heard)
    time.sleep(0.5)
    said["still"] = len(heard) == count
    said["rearm"] = rig.trigger("rearm")
    said["goes on"] = bool(rig.wait(lambda: len(heard) > count + 10, 60.0, "commands after re-arming"))
print(json.dumps(said))
"""

MARKED = """
import json, sys
from pathlib import Path
from benchmarks.ros2_trials import TrialsConfig, make_rig
from vla_rl.data.store import EpisodeStore

folder, policy, *overrides = sys.argv[1:]
config = TrialsConfig(folder, policy, node={"overrides": overrides, "max_attempt_s": 3.0, "attempts": 1},
                      env_options={"difficulty": 0.3, "image_size": 16})
with make_rig(config) as rig:
    assert rig.transition("configure") and rig.transition("activate")
    store = EpisodeStore(Path(folder) / "episodes")
    rig.wait(lambda: len(store), 90.0, "an episode")
    print(json.dumps({"why": rig.status("attempts")[1]}))
"""


Begun = dict[str, tuple[Future[Any], Path]]  # a script and its folder


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Begun:
    stopped, headed, chooses = (tmp_path_factory.mktemp("node") for _ in range(3))
    environment = ros_or_skip()
    started: Begun = {"stopped": (begin(STOPPED, "3.0", str(stopped), environment=environment), stopped)}
    headed_policy(headed / "policy")
    choosing_policy(chooses / "policy")
    for name, folder, *overrides in (("a2c2", headed), ("chooses", chooses, "execution.strategy=naive")):
        arguments = [str(folder), str(folder / "policy"), *overrides]
        started[name] = begin(MARKED, *map(str, arguments), environment=ros_or_skip()), folder
    return started


def test_a_node_that_stood_still_does_not_move_on_by_itself(begun: Begun) -> None:
    said = begun["stopped"][0].result()
    assert said["moving before"] > 0.0
    assert said["moved after"] <= 1e-6, "it stays at the last command"
    assert said["commands after"] <= 3
    assert "LOOP_PAUSED" in said["why"]
    assert not said["start"][0]
    assert said["still"], "only a person re-arms"
    assert said["rearm"][0]
    assert said["goes on"]


def tiny_model(vectors: np.ndarray) -> FlowVLA:
    """A policy that has learnt nothing, for states and actions like these, [N, 8]."""
    spec = PolicySpec("arms", ("front", "top"), (16, 16), 8, 8, control_hz=20.0)
    config = FlowVLAConfig(vision=VisionConfig(widths=(4,), kernels=(4,), strides=(4,)), expert=ExpertConfig(width=16))
    torch.manual_seed(0)
    return FlowVLA(config, spec, Statistics.from_arrays(vectors, vectors)).eval()


def headed_policy(folder: Path) -> None:
    """With a residual head that adds meters to the height of a hand."""
    random = np.random.default_rng(0)
    vectors = random.uniform(-0.01, 0.05, (50, 8)).astype(np.float32)
    model = tiny_model(vectors)
    spec = model.spec
    model.save(folder, {"policy_version": 0})
    images = {camera: random.integers(0, 256, (20, 16, 16, 3), dtype=np.uint8) for camera in spec.cameras}
    states, actions, source = vectors[:20], vectors[20:40], np.full(20, Source.POLICY, np.uint8)
    about: dict[str, Any] = {"task": "", "success": True, "terminated": True, "origin": Origin.DEMO}
    episode = Episode(
        "e", images, states, actions, actions, source, seed=0, control_hz=20.0, env_id="arms", policy_version=0, **about
    )
    small = CorrectorConfig(width=8, steps=2, batch_size=16, plans_per_frame=1, held_out=0.5)
    head = train_corrector(model, [episode, replace(episode, episode_id="f")], small, seed=0)[0]
    weights = dict(head.weights)
    last = f"head{head.spec.layers - 1}.bias"
    weights[last] = weights[last] + np.float32([0, 0, 200, *[0] * 5])
    ResidualCorrector(head.spec, weights).save(folder / FOLDER)


def choosing_policy(folder: Path) -> None:
    """With a residual that may add meters to the height of a hand (none, half and all of it, on three draws), and a
    critic that thinks more of a draw the higher it is.
    """
    model = tiny_model(np.random.default_rng(0).uniform(-0.01, 0.05, (50, 8)).astype(np.float32))
    critic, residual = (
        ChunkCritic(model, ChunkCriticConfig(members=1, hidden=(2,))),
        Residual(model, ResidualConfig(bound=200.0)),
    )
    height = len(critic.mean) - 2 * model.spec.action_dim + 2
    (layer,) = critic.head.layers
    with torch.no_grad():
        for parameter in critic.parameters():
            parameter.zero_()
        layer.weight[0, height] = torch.tensor([1e-4, -1e-4])  # small: to a LayerNorm nearly all else is alike
        critic.head.out.weight[0, :, 0] = torch.tensor([1.0, -1.0])
        residual.net[-1].bias[2] = 1e4
    save_selector(
        folder / CRITIC_FOLDER,
        BestOfN(critic, BestOfNConfig(num_samples=3, offset_std=0.0, graded_residual=True), residual),
    )
    model.save(folder, {"policy_version": 0})


@pytest.mark.parametrize("name", ["a2c2", "chooses"])
def test_a_policy_with_a_residual_head_or_a_critic_acts_over_topics(begun: Begun, name: str) -> None:
    done, folder = begun[name]
    assert "stopped" not in done.result()["why"], done.result()
    store = EpisodeStore(folder / "episodes")
    episode = store.read(store.ids()[0]).validate()
    acted = episode.source == Source.POLICY
    assert acted.sum() > 20
    assert (episode.action_policy[acted, 2] > 1.0).all(), "every action was moved; the policy alone plans 5 cm"
    assert np.abs(episode.action_policy[acted, 1]).max() < 1.0
    assert (np.diff(episode.action_sent[:, 2]) <= 1.0 / 20.0 + 1e-6).all(), "and went through the gate"
