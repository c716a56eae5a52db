"""From a policy in torch to a deployment folder. Needs torch and the extra ``trt``."""

from deploy_trt.export.deployment import export_flow_vla
from deploy_trt.export.policies import export_policy

__all__ = ["export_flow_vla", "export_policy"]
