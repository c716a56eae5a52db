"""A torch module -> an ONNX graph whose weights keep their names. Needs torch and onnxscript.

Exported without the exporter's optimiser: it would fold transposes into weights and merge weights that happen to be
equal (fresh norms are all ones), after which new weights could no longer be put in by name.
"""

import contextlib
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

OPSET = 20


@dataclass(frozen=True)
class ExportedGraph:
    """One graph.

    Attributes:
        name: of the graph.
        model: `onnx_ir.Model`, with its weights.
        weights: the initializers that are weights (entries of the module's state_dict), copied: the module may
            change.
        inputs, outputs: name -> dtype and shape.
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
        """The graph. A wrapping module holds its policy as ``policy``, which is no part of weight names."""
        return export_module(self.name, self.module, self.inputs, self.outputs, strip="policy.")


def export_module(
    name: str,
    module: nn.Module,
    inputs: Mapping[str, Tensor],
    outputs: Sequence[str],
    dynamic_axes: Mapping[str, Mapping[int, str]] | None = None,
    strip: str = "",
) -> ExportedGraph:
    """Export a module's ``forward``.

    Args:
        name: of the graph.
        module: its parameters must be trained or perturbed: a fresh initialisation hides mistakes (zeros, ones).
        inputs: names -> example tensors, in the order of ``forward``'s arguments.
        outputs: names of what ``forward`` returns: a tensor, or a flat tuple of them.
        dynamic_axes: input -> {axis: symbol} that may vary; all other axes are fixed, and checked to be.
        strip: taken off the beginning of weight names: the name of the policy inside a wrapping module.

    Raises:
        UserError: if an input is not used, an axis came out other than asked for, or a weight lost its name.
    """
    dynamic = dynamic_axes or {}
    shapes = [dict.fromkeys(dynamic[key], torch.export.Dim.DYNAMIC) if dynamic.get(key) else None for key in inputs]
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            module.eval(),
            tuple(inputs.values()),
            dynamo=True,
            optimize=False,
            opset_version=OPSET,
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_shapes=tuple(shapes) if dynamic else None,
            verbose=False,
        )
    assert program is not None
    model: Any = program.model
    _forget_origin(model)
    _split_without_sequences(model)
    weights = _named_weights(name, model, set(module.state_dict()), strip)
    found_inputs = {value.name: _info(value) for value in model.graph.inputs}
    _check_inputs(name, model, inputs, dynamic, found_inputs)
    return ExportedGraph(
        name, model, weights, found_inputs, {value.name: _info(value) for value in model.graph.outputs}
    )


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


def _named_weights(graph: str, model: Any, known: set[str], strip: str) -> dict[str, Array]:
    """Give weights the names that they have in training; all of them."""
    initializers = model.graph.initializers
    weights: dict[str, Array] = {}
    for name in list(initializers):
        if name not in known:
            continue
        new = name.removeprefix(strip)
        if new != name:
            value = initializers.pop(name)
            value.name = new
            initializers[new] = value
        weights[new] = _copied(initializers[new].const_value.raw)
    if not weights and known:
        raise UserError(f"graph {graph!r} lost the names of its weights; export with optimize=False and torch >= 2.7")
    return weights


def _split_without_sequences(model: Any) -> None:
    """torch's ``chunk`` comes out as a sequence, which TensorRT does not know; put ``Split`` in its place.

    The exporter's optimiser does this too, but renames weights on the way.
    """
    import onnx_ir

    graph = model.graph
    for node in [node for node in graph if node.op_type == "SplitToSequence"]:
        data, size = node.inputs[0], node.inputs[1]
        sizes = _constant(size)
        readers = [reader for reader, _ in node.outputs[0].uses()]
        axis = node.attributes.get_int("axis", 0)
        if sizes.ndim == 0:
            whole, part = int(data.shape[axis]), int(sizes)
            sizes = np.array([min(part, whole - start) for start in range(0, whole, part)], np.int64)
        lengths = onnx_ir.val(f"{node.name}.sizes", const_value=onnx_ir.tensor(sizes, name=f"{node.name}.sizes"))
        graph.register_initializer(lengths)
        split = onnx_ir.node(
            "Split", [data, lengths], {"axis": axis}, num_outputs=len(sizes), name=f"{node.name}.split"
        )
        graph.insert_before(node, split)
        for reader in readers:
            index = int(_constant(reader.inputs[1]))
            part_value = split.outputs[index]
            part_value.name = reader.outputs[0].name
            part_value.type, part_value.shape = reader.outputs[0].type, reader.outputs[0].shape
            reader.outputs[0].name = f"{part_value.name}.of_sequence"
            onnx_ir.convenience.replace_all_uses_with(reader.outputs[0], part_value)
        graph.remove([*readers, node], safe=True)


def _copied(tensor: Tensor) -> Array:
    plain = tensor.detach().cpu().contiguous()
    if plain.dtype == torch.bfloat16:  # which numpy lacks
        return plain.view(torch.uint16).numpy().copy().view(numpy_dtype("bfloat16"))
    array: Array = plain.numpy().copy()
    return array


def _constant(value: Any) -> Array:
    import onnx_ir

    tensor = onnx_ir.convenience.get_const_tensor(value)
    assert tensor is not None, f"{value.name} is not a constant"
    array: Array = tensor.numpy()
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


def _check_inputs(
    graph: str,
    model: Any,
    asked: Mapping[str, Tensor],
    dynamic: Mapping[str, Mapping[int, str]],
    found: Mapping[str, TensorInfo],
) -> None:
    for value in model.graph.inputs:
        if not value.uses():
            raise UserError(f"graph {graph!r} does not use its input {value.name!r}; leave it out, engines drop it")
    for key, tensor in asked.items():
        expected = tuple(-1 if axis in dynamic.get(key, {}) else size for axis, size in enumerate(tensor.shape))
        if key not in found or found[key].shape != expected:
            raise UserError(
                f"graph {graph!r}: input {key!r} was asked for with shape {list(expected)} and came out as "
                f"{list(found[key].shape) if key in found else 'nothing'}; the exporter froze or freed an axis"
            )


def _info(value: Any) -> TensorInfo:
    shape = tuple(size if isinstance(size, int) else -1 for size in value.shape)
    return TensorInfo(np.dtype(numpy_dtype(value.dtype.numpy().name)).name, shape)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporter warns of its own deprecations; what matters is checked afterwards."""
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
