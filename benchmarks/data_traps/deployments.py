"""Deployed, refreshed and watched policies whose joints are not those of the robot."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data_traps.robots import ARM, HZ, KIND, REVERSED, SIZE, accepted, act_on_arm, save_policy
from benchmarks.data_traps.traps import expect, trap
from deploy_trt.runtime.manifest import (
    Affine,
    FileInfo,
    GraphInfo,
    Manifest,
    SamplerInfo,
    TextInfo,
    load_manifest,
    save_manifest,
)
from deploy_trt.runtime.refresh import read_checkpoint
from vla_rl.acting.policy_folder import load_watched_policy
from vla_rl.core.dimensions import Dimensions
from vla_rl.core.json_files import write_sealed
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.types import Observation
from vla_rl.training.config import RunConfig, TaskConfig
from vla_rl.training.simulator import SimulatorWorker
from vla_rl.training.workers import RolloutJob


def _manifest(folder: Path, dimensions: Dimensions) -> Path:
    """Write the manifest of a deployment; nothing else of it is read before names are compared."""
    size = len(dimensions)
    spec = PolicySpec("arm", ("front",), (SIZE, SIZE), size, size, HZ, dimensions=((dimensions, dimensions),))
    plain, mean = Affine((0.0,) * size, (1.0,) * size), (0.0,) * size
    graph = {"policy": GraphInfo("policy.onnx", "", {}, {})}
    file, sampler = FileInfo("probes.npz", ""), SamplerInfo("direct", width=size)
    text = TextInfo()
    folder.mkdir()
    of_policy = ("flow_vla", 0, spec, 16, "fp32")
    numbers = (plain, plain, mean, mean, ())
    save_manifest(folder, Manifest(*of_policy, graph, {}, None, file, *numbers, text, sampler, provides=()))
    return folder


@trap(KIND, "a deployed policy of another arm", remedy="rename={POLICY_NAME: ROBOT_NAME}")
def deployed(folder: Path) -> str:
    return accepted(act_on_arm(_manifest(folder / "deployed", ARM), Dimensions(("shoulder", "elbow", "wrist"))))


@trap(KIND, "a manifest in which the names were edited by hand", remedy="copy the folder anew")
def edited_manifest(folder: Path) -> str:
    deployed = _manifest(folder / "deployed", ARM)
    text = (deployed / "manifest.json").read_text()
    (deployed / "manifest.json").write_text(text.replace("pan", "lft").replace("lift", "pan").replace("lft", "lift"))
    return accepted(act_on_arm(deployed, ARM))


@trap(KIND, "a manifest that names a joint twice, with a seal that fits", remedy="export the policy anew")
def doubled_in_manifest(folder: Path) -> str:
    deployed = _manifest(folder / "deployed", ARM)
    about = json.loads((deployed / "manifest.json").read_text())
    about["spec"]["dimensions"][0][1]["names"] = ["pan", "pan", "wrist"]
    del about["content_sha256"]
    write_sealed(deployed / "manifest.json", about)
    return accepted(act_on_arm(deployed, ARM))


@trap(KIND, "new weights with reversed joints for a running deployment", remedy="export it anew")
def refreshed(folder: Path) -> str:
    checkpoint = save_policy(folder / "policy", REVERSED, REVERSED)
    manifest = load_manifest(_manifest(folder / "deployed", ARM))
    trained = json.loads((checkpoint / "config.json").read_text())["config"]
    return accepted(read_checkpoint(checkpoint, replace(manifest, source={"config": trained})))


@trap(KIND, "a watched folder whose newest policy has its joints in another order")
def watched(folder: Path) -> str:
    policies = folder / "policies"
    first = save_policy(policies / "version_0000")
    policy: Any = load_watched_policy(first, policies)
    try:
        save_policy(policies / "version_0001", REVERSED, REVERSED)
        policy.look()
        image = np.zeros((SIZE, SIZE, 3), np.uint8)
        policy.infer(Observation({"front": image}, np.zeros(3, np.float32), "wave", 0))
        acts = policy._acting[0].name
    finally:
        policy.close()
    expect(acts == "version_0000", f"{acts} acts with the joints of another order")
    return f"{acts} goes on acting"


@trap(KIND, "a deployment with the joints in another order, evaluated on the task", remedy="trained on")
def evaluated_deployment(folder: Path) -> str:
    config = RunConfig(task=TaskConfig(env="vla_rl/PickPlace-v0", image_size=16, renderer="raycast"))
    worker = SimulatorWorker(config)
    try:
        own = worker.spec.dimensions_of(4)[0]
        deployed = _manifest(folder / "deployed", own.take([3, 2, 1, 0]))
        job = RolloutJob("e0", folder / "episodes", config.task.env, (0,), deployed)
        return accepted(list(worker.run([job])))
    finally:
        worker.close()
