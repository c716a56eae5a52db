"""Deployments are exported once for all tests and all their processes: an export takes seconds."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("onnxscript", reason="exporting needs the extra 'trt'")
sys.path.append(str(Path(__file__).parents[1] / "policies"))  # the tiny policy of the policies' own tests

from choosers import make_selector, save_choosing

from deploy_trt.export import export_flow_vla
from deploy_trt.runtime import DeployedPolicy, Deployment, load_deployed
from vla_rl.core.files import locked
from vla_rl.policies.best_of_n import BestOfN
from vla_rl.policies.flow_vla import FlowVLA

torch.set_num_threads(1)


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that the first process of this run of the tests makes."""
    root = factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    with locked(root, exclusive=True):
        if not (root / name).exists():
            make(root / f"{name}.partial")
            (root / f"{name}.partial").rename(root / name)
    return root / name


@pytest.fixture(scope="session")
def model() -> FlowVLA:
    from tiny_policy import make_model

    return make_model(discrete_dims=(1,), prefix_max=4, sampling_steps=3)


@pytest.fixture(scope="session")
def exported(model: FlowVLA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The deployment of `model`. Read only: copy it to change it."""
    return made_once(tmp_path_factory, "exported", lambda out: export_flow_vla(model, out, {"policy_version": 3}))


@pytest.fixture(scope="session")
def selector(model: FlowVLA) -> BestOfN:
    return make_selector(model)


@pytest.fixture(scope="session")
def exported_choosing(model: FlowVLA, selector: BestOfN, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The deployment of `model` with its selector. Read only."""
    policy = save_choosing(tmp_path_factory.mktemp("choosing"), model, selector)
    return made_once(
        tmp_path_factory,
        "exported_choosing",
        lambda out: export_flow_vla(model, out, {"policy_version": 3}, policy_folder=policy),
    )


@pytest.fixture
def deployment(exported: Path) -> Deployment:
    return Deployment.read(exported)


@pytest.fixture
def policy(exported: Path) -> DeployedPolicy:
    return load_deployed(exported, require="ort-cpu")


@pytest.fixture
def newer(tmp_path: Path) -> tuple[FlowVLA, Path]:
    """The same policy with other weights, and its checkpoint of version 4."""
    from tiny_policy import make_model

    model = make_model(discrete_dims=(1,), prefix_max=4, sampling_steps=3)
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    model.save(tmp_path / "version_0004", {"policy_version": 4})
    return model.eval(), tmp_path / "version_0004"
