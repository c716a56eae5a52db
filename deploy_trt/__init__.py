"""Deployment: ONNX, ONNX Runtime and TensorRT.

`export` makes a deployment folder from a policy in torch. `runtime` plays it without torch, `build` makes engines of it
on their machine, and `verify` compares. `quantize` makes it smaller, `exploration` collects with it, `benchmark` times
it. May import vla_rl.core and, but for its runtime, vla_rl.policies.
"""
