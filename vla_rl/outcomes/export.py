"""The graph of the success detector: one observation and the features of two earlier ones -> features and judgment."""

import json
from dataclasses import asdict
from pathlib import Path

import onnx_ir
import torch
from torch import Tensor, nn

from deploy_trt.export.deployment import text_info
from deploy_trt.export.graph import example_inputs, export_module
from vla_rl.core.config import config_to_dict
from vla_rl.core.errors import UserError
from vla_rl.core.files import digest_of, write_atomic
from vla_rl.outcomes.detector import OFFSETS
from vla_rl.outcomes.judge_network import JudgeNetwork
from vla_rl.policies.base import BasePolicy, flat_features
from vla_rl.policies.flow_vla import FlowVLA


class DetectorGraph(nn.Module):
    """Features [1, F] of an observation, probabilities of the members [1, M] and novelty [1].

    Args:
        policy: Policy whose features are read.
        judge: Trained networks.
    """

    def __init__(self, policy: BasePolicy, judge: JudgeNetwork) -> None:
        super().__init__()
        self.policy, self.judge = policy, judge

    def forward(self, past: Tensor, known: Tensor, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Judge. ``past`` float32 [2, F] counts where ``known`` float32 [2] is 1; else the observation's own."""
        *images, state, text = inputs
        cameras = dict(zip(self.policy.spec.cameras, images, strict=True))
        features = flat_features(*self.policy.features(cameras, state, text)).float()
        earlier = torch.where(known[:, None] > 0, past, features)
        members, novelty = self.judge(torch.cat([earlier, features]).flatten()[None])
        return features, members, novelty


def export_detector(policy: BasePolicy, judge: JudgeNetwork, name: str, folder: Path, version: int) -> None:
    """Write the graph and what runs it.

    Raises:
        UserError: If the policy is not ours: others have no graph of their features.
    """
    if not isinstance(policy, FlowVLA):
        raise UserError(f"the features of a policy of kind {policy.config.kind!r} cannot be exported; use flow_vla")
    spec = policy.spec
    size = judge.mean.numel() // len(OFFSETS)
    inputs = {"past": torch.randn(len(OFFSETS) - 1, size), "known": torch.ones(len(OFFSETS) - 1)}
    inputs |= {**example_inputs(spec), "text": policy.tokenize([""])}
    graph = export_module("detector", DetectorGraph(policy, judge), inputs, ["features", "members", "novelty"])
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "detector.onnx"
    write_atomic(file, onnx_ir.to_proto(graph.model).SerializeToString())
    about = {"version": version, "name": name, "weights": digest_of(file), "features": size}
    about |= {"spec": config_to_dict(spec), "state_mean": list(policy.statistics.state.mean)}
    about |= {"text": asdict(text_info(policy, folder))}
    write_atomic(folder / "detector.json", json.dumps(about, indent=1).encode())
