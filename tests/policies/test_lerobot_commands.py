"""lerobot-eval and lerobot-train with our policy and our tasks, by the command lines that the docs print.

The plug-ins are found as if they were installed, and the programs' own ``main`` runs in this process, since importing
lerobot takes longer than all tests of this file. Arguments that a test adds win over those of the line.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from lerobot_programs import DIMS, SIZE, TASK, documented, write_policy

from vla_rl.core.errors import UserError
from vla_rl.core.types import Episode, Origin, Source
from vla_rl.data.lerobot_export import export_lerobot
from vla_rl.data.store import EpisodeStore

SHORT = ("--eval.n_episodes=2", "--eval.batch_size=1", "--env.episode_length=6", "--output_dir=out")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("workplace"),
    pytest.mark.filterwarnings("ignore"),  # of lerobot and diffusers; not ours
]


def score() -> dict[str, Any]:
    result: dict[str, Any] = json.loads(Path("out/eval_info.json").read_text())["overall"]
    return result


class TestEval:
    def test_our_policy_by_the_documented_line(self, lerobot: Callable[..., None], ours: Path) -> None:
        arguments = documented("lerobot-eval", "exports/policy")
        lerobot("lerobot-eval", *arguments, *SHORT)
        assert score()["n_episodes"] == 2
        assert score()["pc_success"] == 0.0
        assert len(list(Path("out/videos").rglob("*.mp4"))) == 2

    def test_with_the_plug_in_named_and_two_at_once(self, lerobot: Callable[..., None], ours: Path) -> None:
        named = "--policy.discover_packages_path=lerobot_policy_vla_rl"
        arguments = [f"--policy.path={ours}", "--env.type=vla_rl", f"--env.task={TASK}", named, *SHORT]
        lerobot("lerobot-eval", *arguments, "--eval.batch_size=2", "--eval.use_async_envs=false")
        assert score()["n_episodes"] == 2

    def test_act_on_meta_world_by_the_documented_line(self, lerobot: Callable[..., None]) -> None:
        pytest.importorskip("metaworld", reason="Meta-World is not installed")
        write_policy("act", Path("models/my_act"), 96, 4)
        lerobot("lerobot-eval", *documented("lerobot-eval", "models/my_act"), *SHORT)
        assert score()["n_episodes"] == 2

    def test_diffusion(self, lerobot: Callable[..., None]) -> None:
        pytest.importorskip("diffusers", reason="needs the extra 'lerobot-policies'")
        write_policy("diffusion", Path("models/diffusion"), SIZE, DIMS)
        lerobot("lerobot-eval", "--policy.path=models/diffusion", "--env.type=vla_rl", f"--env.task={TASK}", *SHORT)
        assert score()["n_episodes"] == 2

    def test_a_success_is_counted(
        self, lerobot: Callable[..., None], ours: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sim.tasks.peg_insert.PegInsertEnv.is_success", lambda env: env.elapsed_steps == 3)
        arguments = [f"--policy.path={ours}", "--env.type=vla_rl", f"--env.task={TASK}", *SHORT]
        lerobot("lerobot-eval", *arguments, "--eval.n_episodes=1", "--eval.recording=true")
        assert score()["pc_success"] == 100.0
        info = json.loads(Path("out/recordings/vla_rl_0/meta/info.json").read_text())
        assert info["total_frames"] == 3
        assert {"observation.images.front", "agent_pos", "action"} < info["features"].keys()


FOREIGN = """
import gymnasium
import numpy as np

class Toy(gymnasium.Env):
    metadata = {"render_fps": 10, "render_modes": ["rgb_array"]}
    action_space = gymnasium.spaces.Box(-1, 1, (2,))

    def __init__(self, observes="pixels", render_mode=None):
        pixels = gymnasium.spaces.Box(0, 255, (12, 16, 3), np.uint8)
        state = gymnasium.spaces.Box(-1, 1, (3,))
        kinds = {"pixels": {"pixels": pixels, "agent_pos": state}, "goal": {"goal": state}}
        self.observation_space = state if observes == "state" else gymnasium.spaces.Dict(kinds[observes])
        self.render_mode = render_mode

    def reset(self, seed=None, options=None):
        return self.observation_space.sample(), {}

    def render(self):
        return np.zeros((20, 24, 3), np.uint8)

gymnasium.register("Toy-v0", Toy)
"""


class TestConfig:
    """Any gymnasium environment, by ``package:Name-v0``."""

    @pytest.fixture(autouse=True)
    def toys(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "foreign_toys.py").write_text(FOREIGN)
        monkeypatch.syspath_prepend(str(tmp_path))

    @staticmethod
    def config(**options: Any) -> Any:
        from lerobot.envs.factory import make_env_config
        from lerobot.utils.import_utils import register_third_party_plugins

        register_third_party_plugins()
        return make_env_config("vla_rl", **({"task": "foreign_toys:Toy-v0", "episode_length": 4} | options))

    @pytest.mark.parametrize(("observes", "image"), [("pixels", (3, 12, 16)), ("state", (3, 20, 24))])
    def test_features_are_read_from_the_environment(self, observes: str, image: tuple[int, ...]) -> None:
        from lerobot.envs.utils import env_to_policy_features

        config = self.config(options={"observes": observes})
        assert config.fps == 10
        found = {name: feature.shape for name, feature in env_to_policy_features(config).items()}
        assert found == {"observation.image": image, "observation.state": (3,), "action": (2,)}
        vector = config.create_envs(2)["vla_rl"][0]
        vector.reset(seed=0)
        assert vector.call("_max_episode_steps") == (4, 4)
        assert vector.envs[0].render().shape == (*image[1:], 3)

    def test_what_lerobot_cannot_use_is_said(self) -> None:
        with pytest.raises(UserError, match="lerobot cannot use foreign_toys:Toy-v0: it observes Dict"):
            self.config(options={"observes": "goal"})
        with pytest.raises(UserError, match="how long an episode is; add --env"):
            self.config(episode_length=None)


class TestTrain:
    @pytest.fixture(scope="class")
    def episodes(self, workplace: Path) -> EpisodeStore:
        store, random = EpisodeStore(workplace / "episodes"), np.random.default_rng(0)
        shape = (12, SIZE, SIZE, 3)
        actions = random.normal(size=(12, DIMS)).astype(np.float32)
        store.add(
            Episode(
                "only",
                images={camera: random.integers(0, 256, shape, dtype=np.uint8) for camera in ("front", "top")},
                state=random.normal(size=(12, DIMS)).astype(np.float32),
                action_policy=actions,
                action_sent=actions,
                source=np.full(12, Source.DEMO, np.uint8),
                task="insert",
                success=True,
                terminated=True,
                origin=Origin.DEMO,
                policy_version=-1,
                seed=0,
                control_hz=20.0,
                env_id=TASK,
            )
        )
        return store

    SHORT: ClassVar = ("--steps=2", "--batch_size=2", "--num_workers=0", "--policy.device=cpu")

    def test_our_policy_by_the_documented_line(self, lerobot: Callable[..., None], episodes: EpisodeStore) -> None:
        export_lerobot(episodes, Path("exports/peg"))
        lerobot(
            "lerobot-train", *documented("lerobot-train", "policy.type=vla_rl"), *self.SHORT, "--output_dir=trained"
        )
        assert list(Path("trained/checkpoints").rglob("model.safetensors"))
