"""Deployment: ONNX, ONNX Runtime and TensorRT. May import vla_rl.core and, but for its runtime, vla_rl.policies.
Empty as yet.
"""
