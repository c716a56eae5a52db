"""From a policy in torch to a deployment folder. Needs torch and the extra ``trt``."""

from deploy_trt.export.deployment import export_flow_vla, save_deployment
from deploy_trt.export.flow_vla import flow_vla_graphs
from deploy_trt.export.graph import ExportedGraph, export_module, split_weights
from deploy_trt.export.policies import copy_head, export_policy

__all__ = [
    "ExportedGraph",
    "copy_head",
    "export_flow_vla",
    "export_module",
    "export_policy",
    "flow_vla_graphs",
    "save_deployment",
    "split_weights",
]
