"""A torch module -> an ONNX graph whose weights keep their names. Needs torch and onnxscript.

The exporter's optimizer is off. It would fold transposes into weights and merge equal weights (fresh norms are all
ones). New weights could then no longer be put in by name. It runs afterwards, around the weights.
"""

import contextlib
import functools
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from deploy_trt.runtime.manifest import WEIGHTS_LOCATION, TensorInfo
from deploy_trt.runtime.weights import Array, layout, numpy_dtype, pack
from vla_rl.core.errors import UserError
from vla_rl.core.policy_spec import PolicySpec

OPSET = 20


@dataclass(frozen=True)
class ExportedGraph:
    """One graph, an `onnx_ir.Model` with its weights.

    Attributes:
        weights: The initializers that are weights (entries of the module's state_dict), copied: the module may change.
        inputs, outputs: Name -> dtype and shape.
    """

    name: str
    model: Any
    weights: dict[str, Array]
    inputs: dict[str, TensorInfo]
    outputs: dict[str, TensorInfo]


@dataclass(frozen=True)
class GraphSpec:
    """A graph to be: what `export_module` takes. The module is also the reference that the graph is compared with."""

    name: str
    module: nn.Module
    inputs: Mapping[str, Tensor]
    outputs: Sequence[str]

    def export(self) -> ExportedGraph:
        """Return the graph."""
        return export_module(self.name, self.module, self.inputs, self.outputs)


def export_module(name: str, module: nn.Module, inputs: Mapping[str, Tensor], outputs: Sequence[str]) -> ExportedGraph:
    """Export a module's ``forward``.

    Args:
        name: of the graph.
        module: its parameters must be trained or perturbed: a fresh initialization hides mistakes (zeros, ones). A
            wrapping module holds its policy as ``policy``, which is no part of weight names.
        inputs: names -> example tensors, in the order of ``forward``'s arguments.
        outputs: names of what ``forward`` returns: a tensor, or a flat tuple of them.

    Raises:
        UserError: if an input is not used, an axis came out other than asked for, or a weight lost its name.
    """
    with quiet_exporter(), _operators_read_once(), torch.no_grad():
        program = torch.onnx.export(
            module.eval(),
            tuple(inputs.values()),
            dynamo=True,
            optimize=False,
            opset_version=OPSET,
            input_names=list(inputs),
            output_names=list(outputs),
            verbose=False,
        )
    assert program is not None
    model: Any = program.model
    weights = _named_weights(name, model, set(module.state_dict()))
    with quiet_exporter():
        _fold_constants(model, weights)
    _forget_origin(model)
    found_inputs = {value.name: _info(value) for value in model.graph.inputs}
    for value in model.graph.inputs:
        if not value.uses():
            raise UserError(f"graph {name!r} does not use its input {value.name!r}; leave it out, engines drop it")
    for key, tensor in inputs.items():
        if key not in found_inputs or found_inputs[key].shape != tuple(tensor.shape):
            raise UserError(
                f"graph {name!r}: input {key!r} was asked for with shape {list(tensor.shape)} and came out as "
                f"{list(found_inputs[key].shape) if key in found_inputs else 'nothing'}; the exporter changed an axis"
            )
    return ExportedGraph(
        name, model, weights, found_inputs, {value.name: _info(value) for value in model.graph.outputs}
    )


def example_inputs(spec: PolicySpec) -> dict[str, Tensor]:
    """Return random pictures and a random state of a robot as inputs of a graph, batch 1."""
    size = (1, *spec.image_size, 3)
    images = {f"image.{camera}": torch.randint(0, 256, size, dtype=torch.uint8) for camera in spec.cameras}
    return {**images, "state": torch.randn(1, spec.state_dim)}


def split_weights(graphs: Sequence[ExportedGraph]) -> tuple[dict[str, bytes], bytes]:
    """Take the weights out of graphs, into one file that all of them refer to.

    Returns:
        name of the graph -> ONNX without weights, and the content of the safetensors file. A weight that several
        graphs use stands there once.
    """
    import onnx_ir

    tensors: dict[str, Array] = {}
    for graph in graphs:
        tensors |= graph.weights
    content = pack(tensors)
    places = layout(content)
    serialized = {}
    for graph in graphs:
        for name in graph.weights:
            _, shape, offset, size = places[name]
            value = graph.model.graph.initializers[name]
            value.const_value = onnx_ir.ExternalTensor(
                WEIGHTS_LOCATION, offset, size, value.const_value.dtype, shape=onnx_ir.Shape(shape), name=name
            )
        serialized[graph.name] = onnx_ir.to_proto(graph.model).SerializeToString()
    return serialized, content


def _named_weights(graph: str, model: Any, known: set[str]) -> dict[str, Array]:
    initializers = model.graph.initializers
    weights: dict[str, Array] = {}
    for name in list(initializers):
        if name not in known:
            continue
        new = name.removeprefix("policy.")
        if new != name:
            value = initializers.pop(name)
            value.name = new
            initializers[new] = value
        weights[new] = _copied(initializers[new].const_value.raw)
    if not weights and known:
        raise UserError(f"graph {graph!r} lost the names of its weights; export with optimize=False and torch >= 2.7")
    return weights


def _fold_constants(model: Any, weights: Mapping[str, Array]) -> None:
    """Let the exporter's optimizer work around the weights: they are inputs while it does, so that it can neither fold
    nor merge them. TensorRT needs it: sequences, shapes and axes that are computed are constants afterwards.
    """
    import onnxscript.optimizer

    graph = model.graph
    kept = {name: graph.initializers.pop(name) for name in weights}
    constants = {name: value.const_value for name, value in kept.items()}
    for value in kept.values():
        value.const_value = None
        graph.inputs.append(value)
    onnxscript.optimizer.optimize_ir(model)
    for name, value in kept.items():
        graph.inputs.remove(value)
        value.const_value = constants[name]
        graph.register_initializer(value)


def _copied(tensor: Tensor) -> Array:
    plain = tensor.detach().cpu().contiguous()
    if plain.dtype == torch.bfloat16:  # which numpy lacks
        return plain.view(torch.uint16).numpy().copy().view(numpy_dtype("bfloat16"))
    array: Array = plain.numpy().copy()
    return array


def _forget_origin(model: Any) -> None:
    """Take out where in which file each node comes from: larger than the graph, and of no use where it runs."""
    for node in model.graph:
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
    for value in [*model.graph.inputs, *model.graph.initializers.values()]:
        value.metadata_props.clear()
    model.metadata_props.clear()
    model.graph.metadata_props.clear()


def _info(value: Any) -> TensorInfo:
    shape = tuple(size if isinstance(size, int) else -1 for size in value.shape)
    return TensorInfo(np.dtype(numpy_dtype(value.dtype.numpy().name)).name, shape)


@functools.cache
def _operator_reader() -> Any:
    from torch.onnx._internal.exporter import _registration

    return functools.cache(_registration.ONNXRegistry.from_torchlib)


@contextlib.contextmanager
def _operators_read_once() -> Iterator[None]:
    """torch reads its library of operators anew for every graph: a third of the time of an export."""
    from torch.onnx._internal.exporter import _registration

    registry: Any = _registration.ONNXRegistry
    ordinary, reader = vars(registry)["from_torchlib"], _operator_reader()
    registry.from_torchlib = staticmethod(reader)
    try:
        yield
    finally:
        registry.from_torchlib = ordinary


@contextlib.contextmanager
def quiet_exporter() -> Iterator[None]:
    """Silence the exporter's own deprecations and its notes on constants; the export is checked afterwards."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnx_ir", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
