"""Every kind of file that comes from outside: how a small one is made, and the function of the verbs that reads it.

A reader's result of a folder has a fingerprint. An accepted mutated folder with another fingerprint was changed in
silence.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.types import Episode, Observation, Origin, Source

SPEC = PolicySpec("hostile", ("front",), (8, 8), state_dim=3, action_dim=2)
_ANY = ("*", "*/*")


@dataclass(frozen=True)
class Kind:
    """One kind of file.

    Attributes:
        make: writes an example into a new folder.
        read: the entry function; gives the fingerprint. Refuses with a UserError.
        patterns: of the files that are mutated.
        mutations: those that a reader can be asked to notice; empty: all. Files of others carry no digest of ours.
    """

    make: Callable[[Path], None]
    read: Callable[[Path], str]
    patterns: tuple[str, ...] = _ANY
    mutations: tuple[str, ...] = ()


def fingerprint(*parts: Any) -> str:
    """Return a digest over plain data, dataclasses and arrays; their ``repr`` distinguishes all but arrays."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(np.ascontiguousarray(part).tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
    return sha.hexdigest()


def observation() -> Observation:
    random = np.random.default_rng(0)
    images = {"front": random.integers(0, 256, (*SPEC.image_size, 3), dtype=np.uint8)}
    return Observation(images, random.normal(size=3).astype(np.float32), "put it in", 0)


def episode(name: str, seed: int = 0, length: int = 6) -> Episode:
    random = np.random.default_rng(seed)
    action = random.normal(size=(length, 2)).astype(np.float32)
    return Episode(
        episode_id=name,
        images={"front": random.integers(0, 256, (length, 8, 8, 3), dtype=np.uint8)},
        state=random.normal(size=(length, 3)).astype(np.float32),
        action_policy=action,
        action_sent=action,
        source=np.full(length, Source.DEMO, np.uint8),
        task="put it in",
        success=True,
        terminated=True,
        origin=Origin.DEMO,
        policy_version=-1,
        seed=seed,
        control_hz=20.0,
        env_id="hostile",
        extras={"captured_ns.front": np.arange(length)},
    )


def model(seed: int = 0) -> Any:
    """A tiny policy, its weights perturbed."""
    import torch

    from vla_rl.core.normalization import Statistics
    from vla_rl.policies.flow_vla import ExpertConfig, FlowVLA, FlowVLAConfig, TextConfig, VisionConfig

    random = np.random.default_rng(seed)
    statistics = Statistics.from_arrays(random.normal(2, 3, (50, 3)), random.normal(-1, 2, (50, 2)), (1,))
    config = FlowVLAConfig(
        horizon=8,
        sampling_steps=2,
        vision=VisionConfig(widths=(4,), kernels=(4,), strides=(4,), keypoints=2, patches=1),
        text=TextConfig(max_words=4),
        expert=ExpertConfig(width=16, layers=1, heads=2, actions_per_token=2),
    )
    torch.manual_seed(seed)
    made = FlowVLA(config, SPEC, statistics)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return made


def tensors_of(module: Any) -> list[Any]:
    return [part for name, value in sorted(module.state_dict().items()) for part in (name, value.numpy())]


def make_policy(folder: Path) -> None:
    model().save(folder, {"policy_version": 3})


def read_policy(folder: Path) -> str:
    from vla_rl.acting.policy_folder import find_policy
    from vla_rl.policies.folders import load_model

    found = find_policy(folder)
    loaded, meta = load_model(folder)
    shown = (found.spec, found.horizon, found.version, found.discrete_dims, loaded.config, loaded.statistics, meta)
    return fingerprint(shown, *tensors_of(loaded))


def make_critic(folder: Path) -> None:
    from vla_rl.policies.best_of_n import BestOfN, BestOfNConfig, ChunkCritic, ChunkCriticConfig
    from vla_rl.policies.checkpoint import save_selector
    from vla_rl.policies.residual import Residual, ResidualConfig

    critic = ChunkCritic(model(), ChunkCriticConfig(members=2, hidden=(8,)))
    save_selector(folder, BestOfN(critic, BestOfNConfig(), Residual(model(), ResidualConfig(hidden=(8,)))))


def read_critic(folder: Path) -> str:
    from vla_rl.policies.checkpoint import load_selector

    selector = load_selector(folder, model())
    assert selector.residual is not None
    assert selector.critic is not None
    configs = (selector.config, selector.critic.config, selector.residual.config)
    return fingerprint(configs, *tensors_of(selector.critic), *tensors_of(selector.residual))


def make_world(folder: Path) -> None:
    import torch

    from world_model.feature_decoder import FeatureDecoder
    from world_model.feature_dynamics import FeatureDynamics, FeatureDynamicsConfig
    from world_model.feature_world import FeatureWorld, Trust, save_world_model
    from world_model.protocol import WorldSpec

    spec = WorldSpec("toy", "push", ("front",), (16, 16), 3, 2, 20.0, 12, (-1.0, -1.0), (1.0, 1.0))
    dynamics = FeatureDynamics(FeatureDynamicsConfig(members=1), (2, 2), torch.arange(4), partial=True)
    decoder = FeatureDecoder(5, 1, spec.image_size)
    world = FeatureWorld(dynamics, lambda _: torch.zeros(1, 5), lambda actions: actions, decoder, trust=Trust(1, 0, 1))
    save_world_model(folder, world, spec)


def read_world(folder: Path) -> str:
    import torch

    from world_model.feature_world import load_world_model

    world, spec = load_world_model(folder, lambda _: torch.zeros(1, 5), lambda actions: actions, lambda seen: seen)
    dynamics = world.dynamics
    about = (dynamics.config, dynamics.shape, dynamics.partial, world.trust, spec)
    return fingerprint(about, *tensors_of(dynamics), *tensors_of(world.decoder))


def make_deployment(folder: Path) -> None:
    from deploy_trt.export import export_flow_vla

    export_flow_vla(model(), folder, {"policy_version": 3})


def read_deployment(folder: Path) -> str:
    from deploy_trt.runtime import load_deployed

    policy = load_deployed(folder, require="ort-cpu")
    return fingerprint(policy.manifest, policy.infer(observation()).actions)


def make_checkpoint(folder: Path) -> None:
    import torch

    from vla_rl.training.checkpoint import save_checkpoint

    moments = {0: {"step": torch.tensor(3.0), "exp_avg": torch.arange(12.0).reshape(3, 4)}}
    save_checkpoint(folder, 20, {"actor": {"weight": torch.ones(3, 4)}, "optimizer": {"state": moments}, "best": 0.5})


def read_checkpoint(folder: Path) -> str:
    from vla_rl.training.checkpoint import load_newest_checkpoint

    return fingerprint(load_newest_checkpoint(folder))


def make_store(folder: Path) -> None:
    from vla_rl.data.store import EpisodeStore

    store = EpisodeStore(folder)
    for number in range(2):
        store.add(episode(f"e{number}", number))
    store.label("e0", False)


def read_episodes(folder: Path) -> str:
    """As training does: through the frame cache."""
    from vla_rl.data.cache import FrameCache
    from vla_rl.data.store import EpisodeStore

    store = EpisodeStore(folder, create=False)
    cache = FrameCache(store, folder / "cache")
    cache.refresh()
    columns = (cache.state, cache.action, cache.action_sent, cache.source, cache.images["front"])
    headers = [store.read_header(name) for name in store.ids()]
    return fingerprint(headers, [part.tobytes() for part in columns])


def make_lerobot(folder: Path) -> None:
    from vla_rl.data.lerobot_export import export_lerobot
    from vla_rl.data.store import EpisodeStore

    make_store(folder.with_name("source"))
    export_lerobot(EpisodeStore(folder.with_name("source"), create=False), folder)


def read_lerobot(folder: Path) -> str:
    from vla_rl.data.lerobot_import import import_lerobot
    from vla_rl.data.store import EpisodeStore

    store = EpisodeStore(folder / "taken")
    import_lerobot(folder, store)
    return fingerprint([store.read_header(name) for name in store.ids()])


def make_bag(folder: Path) -> None:
    from rosbags.rosbag2 import StoragePlugin, Writer
    from rosbags.typesys import Stores, get_typestore

    types = get_typestore(Stores.ROS2_JAZZY)
    layout, array = types.types["std_msgs/msg/MultiArrayLayout"], types.types["std_msgs/msg/Float64MultiArray"]
    with Writer(folder, version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        topics = {name: writer.add_connection(name, array.__msgtype__, typestore=types) for name in ("/state", "/act")}
        for tick in range(12):
            for connection in topics.values():
                message = array(layout=layout([], 0), data=np.array([tick, 0.5]))
                writer.write(connection, 10**18 + tick * 50_000_000, types.serialize_cdr(message, array.__msgtype__))


def read_bag(folder: Path) -> str:
    from vla_rl_bags import BagMapping, import_bag

    from vla_rl.data.store import EpisodeStore

    store = EpisodeStore(folder / "taken")
    import_bag(folder, store, BagMapping(state=("/state",), action=("/act",)))
    return fingerprint([store.read_header(name).digest for name in store.ids()])


def make_config(folder: Path) -> None:
    folder.mkdir()
    (folder / "config.yaml").write_text("task: {env: vla_rl/PegInsert-v0}\nseed: 3\n")


def read_config(folder: Path) -> str:
    from vla_rl.data.run_folder import RunFolder
    from vla_rl.training.config import RunConfig

    return fingerprint(RunFolder.open(folder, RunConfig)[1])


_STRUCTURE = ("truncated", "pickle", "empty", "nested")
KINDS = {
    "policy": Kind(make_policy, read_policy),
    "critic": Kind(make_critic, read_critic),
    "world model": Kind(make_world, read_world),
    "deployment": Kind(make_deployment, read_deployment),
    "checkpoint": Kind(make_checkpoint, read_checkpoint),
    "episode": Kind(make_store, read_episodes, ("episodes/*",)),
    "label and settings": Kind(make_store, read_episodes, ("edits/*", "store.json")),
    "lerobot dataset": Kind(
        make_lerobot, read_lerobot, ("meta/info.json", "data/*/*", "meta/episodes/*/*"), _STRUCTURE
    ),
    "bag": Kind(make_bag, read_bag, ("*.mcap", "metadata.yaml"), _STRUCTURE),
    "config": Kind(make_config, read_config, ("config.yaml",), ("hostile yaml",)),
}
