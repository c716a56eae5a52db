"""Graphs on ONNX Runtime, on the CPU or on CUDA. The weights are put in by name before anything is optimized."""

from collections.abc import Mapping

import numpy as np

from deploy_trt.runtime.backend import Backend, Value
from deploy_trt.runtime.manifest import WEIGHTS_LOCATION
from deploy_trt.runtime.weights import Array
from vla_rl.core.errors import CheckpointError, UserError, one_line

PROVIDERS = {"ort-cuda": "CUDAExecutionProvider", "ort-cpu": "CPUExecutionProvider"}
_ERRORS_ONLY = 3
_NOWHERE = "/nonexistent"


class OrtBackend(Backend):
    """One session per graph.

    Args:
        name: ``ort-cpu`` or ``ort-cuda``.
        graphs: name -> ONNX.
        weights: content of the safetensors file that the graphs refer to; None if they hold their weights themselves.
        optimize: False executes the graph node by node as it was exported, for reference.

    Raises:
        CheckpointError: for a graph that is none, or whose weights are elsewhere than in ``weights``.
        UserError: if ONNX Runtime does not give the provider that was asked for: it would silently use another one.
    """

    def __init__(
        self,
        name: str,
        graphs: Mapping[str, bytes],
        weights: bytes | None,
        optimize: bool = True,
    ) -> None:
        import onnxruntime

        self.name = name
        self._ort = onnxruntime
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = _ERRORS_ONLY
        if not optimize:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        if weights is not None:
            # As the content of an external file, which is read before constants are folded. `add_initializer` would
            # come after: what was folded would keep the old weights.
            options.add_external_initializers_from_files_in_memory([WEIGHTS_LOCATION], [weights], [len(weights)])
        # Nothing else is ever read: with a folder that is not there, a graph that names another file is refused.
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", _NOWHERE)
        provider = PROVIDERS[name]
        self._device = "cuda" if name == "ort-cuda" else "cpu"
        self.sessions = {}
        for graph, content in graphs.items():
            try:
                self.sessions[graph] = onnxruntime.InferenceSession(content, options, providers=[provider])
            except Exception as error:  # the library has a dozen kinds, without a common one
                raise CheckpointError(f"graph {graph!r} cannot be played: {one_line(error)}") from error
        for graph, session in self.sessions.items():
            if session.get_providers()[0] != provider:
                raise UserError(f"ONNX Runtime runs graph {graph!r} on {session.get_providers()[0]}, not on {provider}")
        self._outputs = {
            graph: [output.name for output in session.get_outputs()] for graph, session in self.sessions.items()
        }

    def with_weights(self, graphs: Mapping[str, bytes], weights: bytes | None) -> "OrtBackend":
        """Sessions of the same kind beside these."""
        return OrtBackend(self.name, graphs, weights)

    def put(self, array: Array) -> Value:
        array = np.ascontiguousarray(array)
        return array if self._device == "cpu" else self._ort.OrtValue.ortvalue_from_numpy(array, self._device, 0)

    def get(self, value: Value) -> Array:
        array: Array = value if self._device == "cpu" else value.numpy()
        return array

    def run(self, graph: str, feeds: Mapping[str, Value]) -> dict[str, Value]:
        names = self._outputs[graph]
        if self._device == "cpu":  # plain arrays: wrapping them takes longer than a small graph
            return dict(zip(names, self.sessions[graph].run(names, feeds), strict=True))
        binding = self.sessions[graph].io_binding()
        for name, value in feeds.items():
            binding.bind_ortvalue_input(name, value)
        for name in names:
            binding.bind_output(name, self._device)
        self.sessions[graph].run_with_iobinding(binding)
        return dict(zip(names, binding.get_outputs(), strict=True))
