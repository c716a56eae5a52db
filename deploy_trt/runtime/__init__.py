"""What runs on the robot computer: a deployment folder behind the loop's `Policy` protocol.

Dependency law: numpy and `vla_rl.core`, and inside a backend the one library that it is named after. No torch.
"""

from deploy_trt.runtime.folder import Deployment
from deploy_trt.runtime.loading import load_deployed, open_backend
from deploy_trt.runtime.manifest import Manifest, is_deployment, load_manifest
from deploy_trt.runtime.policy import DeployedPolicy

__all__ = [
    "DeployedPolicy",
    "Deployment",
    "Manifest",
    "is_deployment",
    "load_deployed",
    "load_manifest",
    "open_backend",
]
