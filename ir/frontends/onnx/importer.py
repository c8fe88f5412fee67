"""Node by node from the ONNX graph to ours: names, order, functions, branches and loops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, helper

from ir.frontends.onnx import layers, quantized, recurrent, resize, shapes
from ir.frontends.onnx.builder import UNROLLED, Builder, Call
from ir.frontends.onnx.reader import (
    DOMAINS,
    attribute,
    bound_shapes,
    captured,
    one_line,
    opsets,
    shown,
    tensor,
    titled,
)
from ir.frontends.onnx.shapes import Handler
from ir.graph import Graph, ModelError

HANDLERS: Mapping[str, Handler] = {
    **shapes.HANDLERS,
    **layers.HANDLERS,
    **quantized.HANDLERS,
    **recurrent.HANDLERS,
    **resize.HANDLERS,
}

FAULTS = (ValueError, TypeError, IndexError, ArithmeticError)  # what senseless attributes and shapes raise in a handler
NESTING = 64  # functions in functions; more is a model that calls itself


@dataclass(slots=True)
class Scope:
    """Names of one graph or function body: what each of its values is called in ours."""

    opsets: Mapping[str, int]
    names: dict[str, str]
    outer: Scope | None = None
    bindings: Mapping[str, AttributeProto] = field(default_factory=dict)
    depth: int = 0

    def find(self, name: str) -> str | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        return None


@dataclass(slots=True)
class Importer:
    folder: Path | None
    functions: Mapping[tuple[str, str], FunctionProto]
    known: Mapping[str, np.ndarray]
    builder: Builder = field(default_factory=Builder)

    def run(
        self,
        graph: GraphProto,
        versions: Mapping[str, int],
        given: Mapping[str, Sequence[int]],
        dims: Mapping[str, int],
    ) -> Graph:
        scope = Scope(versions, {})
        stored = {t.name for t in graph.initializer}
        free = [i for i in graph.input if i.name not in stored and i.name not in self.known]
        _refuse_doubles(i.name for i in graph.input)
        for name, (shape, dtype) in bound_shapes(free, given, dims).items():
            scope.names[name] = self.builder.input(name, shape, dtype)
        for name in self.known:
            if name not in stored and name not in {i.name for i in graph.input}:
                raise ModelError(f"known names {shown(name)}, which is neither an input nor an initialiser")
            scope.names[name] = self.builder.constant(np.asarray(self.known[name]), name)
        self._initialisers(graph, scope)
        self.body(graph.node, scope)
        outputs = [(o.name, self._found(o.name, scope, "an output of the graph")) for o in graph.output]
        return self.builder.graph(graph.name or "graph", outputs)

    def _initialisers(self, graph: GraphProto, scope: Scope) -> None:
        if graph.sparse_initializer:
            raise ModelError("the model has sparse initialisers, which are not supported; store them dense")
        _refuse_doubles(t.name for t in graph.initializer)
        for proto in graph.initializer:
            if proto.name not in scope.names:
                array = tensor(proto, self.folder, f"initialiser {shown(proto.name)}")
                scope.names[proto.name] = self.builder.constant(array, proto.name)

    # --- bodies: the main graph, a branch, a function

    def body(self, nodes: Sequence[NodeProto], scope: Scope) -> None:
        """All nodes of one scope, in an order that respects their inputs."""
        if scope.depth > NESTING:
            raise ModelError(f"functions or branches are nested more than {NESTING} deep; does one call itself?")
        for node in _ordered(nodes, scope):
            self.node(node, scope)

    def node(self, proto: NodeProto, scope: Scope) -> None:
        domain = "" if proto.domain in DOMAINS else proto.domain
        attributes = {
            a.name: bound for a in proto.attribute if (bound := _bound_attribute(a, scope.bindings)) is not None
        }
        inputs = tuple(self._found(i, scope, "an input") if i else "" for i in proto.input)
        function = self.functions.get((proto.domain, proto.op_type))
        if function is not None:
            self._inline(function, inputs, attributes, proto.output, scope)
            return
        if domain == "" and proto.op_type in CONTROL:
            self._controlled(proto, attributes, inputs, scope)
            return
        values = {
            k: attribute(a, self.folder, f"attribute {shown(k)} of {_title(proto)}") for k, a in attributes.items()
        }
        call = Call(proto.op_type, domain, scope.opsets.get(domain, 1), proto.name, inputs, tuple(proto.output), values)
        handler = HANDLERS.get(proto.op_type) if domain in HANDLED_DOMAINS else None
        if handler is not None:
            self._bind(proto.output, self._handled(handler, call), scope)
            return
        body, every = self._standard_function(proto, call, attributes)
        self._inline(body, inputs, every, proto.output, scope)

    def _handled(self, handler: Handler, call: Call) -> list[str]:
        """Run a handler; what it finds wrong is told with the node's name. Fresh results take the model's names."""
        b = self.builder
        b.base, b.made, first = next((o for o in call.outputs if o), call.name or call.kind), set(), len(b.nodes)
        try:
            found = list(handler(b, call))
        except FAULTS as error:
            raise ModelError(f"{call.title}: {one_line(str(error))}") from error
        for ours, wanted in zip(list(found), call.outputs, strict=False):
            if wanted and ours in b.made and wanted not in b.values:
                b.rename(ours, wanted, first)
                found = [wanted if o == ours else o for o in found]
        return found

    def _bind(self, outputs: Sequence[str], found: Sequence[str], scope: Scope) -> None:
        for position, name in enumerate(outputs):
            if name and position < len(found):
                scope.names[name] = found[position]

    def _found(self, name: str, scope: Scope, role: str) -> str:
        ours = scope.find(name)
        if ours is None:
            raise ModelError(f"value {shown(name)}, {role}, is not defined; no node, input or initialiser makes it")
        return ours

    # --- what is inlined

    def _inline(
        self,
        function: FunctionProto,
        inputs: Sequence[str],
        attributes: Mapping[str, AttributeProto],
        outputs: Sequence[str],
        scope: Scope,
    ) -> None:
        """The body of a function under its own names; it sees its inputs alone."""
        names = {formal: given for formal, given in zip(function.input, inputs, strict=False) if given}
        defaults = {a.name: a for a in function.attribute_proto}
        versions = {**scope.opsets, **opsets(function.opset_import)} if function.opset_import else scope.opsets
        inner = Scope(versions, names, None, {**defaults, **attributes}, scope.depth + 1)
        absent = set(function.input) - set(names)
        self.body([_without(n, absent) for n in function.node], inner)
        for formal, wanted in zip(function.output, outputs, strict=False):
            if wanted:
                scope.names[wanted] = self._found(formal, inner, f"an output of function {function.name}")

    def _controlled(
        self, proto: NodeProto, attributes: Mapping[str, AttributeProto], inputs: Sequence[str], scope: Scope
    ) -> None:
        try:
            CONTROL[proto.op_type](self, proto, attributes, inputs, scope)
        except ModelError:  # told by the node inside
            raise
        except FAULTS as error:
            raise ModelError(f"{_title(proto)}: {one_line(str(error))}") from error

    def _subgraph(self, graph: GraphProto, inputs: Sequence[str], scope: Scope) -> list[str]:
        """The body of a control operator, once; it sees the names around it."""
        if len(graph.input) != len(inputs):
            raise ValueError(f"its body takes {len(graph.input)} inputs, not {len(inputs)}")
        names = {i.name: given for i, given in zip(graph.input, inputs, strict=True)}
        inner = Scope(scope.opsets, names, scope, scope.bindings, scope.depth + 1)
        self._initialisers(graph, inner)
        self.body(graph.node, inner)
        return [self._found(o.name, inner, f"an output of {shown(graph.name)}") for o in graph.output]

    def _branch(
        self, proto: NodeProto, attributes: Mapping[str, AttributeProto], inputs: Sequence[str], scope: Scope
    ) -> None:
        condition = self.builder.value(inputs[0], f"the condition of {_title(proto)}")
        graph = _graph(attributes, "then_branch" if condition.all() else "else_branch", proto)
        self._bind(proto.output, self._subgraph(graph, (), scope), scope)

    def _loop(
        self, proto: NodeProto, attributes: Mapping[str, AttributeProto], inputs: Sequence[str], scope: Scope
    ) -> None:
        """Unrolled: the trip count and every condition must be known."""
        b, body, title = self.builder, _graph(attributes, "body", proto), _title(proto)
        trips = b.integers(inputs[0], f"the trip count of {title}")[0] if inputs[0] else UNROLLED + 1
        going = not inputs[1] or bool(b.value(inputs[1], f"the condition of {title}").all())
        carried = list(inputs[2:])
        collected: list[list[str]] = [[] for _ in body.output[1 + len(carried) :]]
        step = 0
        while going and step < trips:
            if step == UNROLLED:
                raise ModelError(f"{title} runs more than {UNROLLED} times, too many to unroll")
            b.base = f"{title}/{step}"
            count, condition = b.constant(np.asarray(step, np.int64)), b.constant(np.asarray(True))
            made = self._subgraph(body, (count, condition, *carried), scope)
            going = bool(b.value(made[0], f"the condition of {title} after step {step}").all())
            carried = made[1 : 1 + len(carried)]
            for rows, row in zip(collected, made[1 + len(carried) :], strict=True):
                rows.append(row)
            step += 1
        self._bind(proto.output, [*carried, *(self._stacked(rows, 0, title) for rows in collected)], scope)

    def _scan(
        self, proto: NodeProto, attributes: Mapping[str, AttributeProto], inputs: Sequence[str], scope: Scope
    ) -> None:
        """Unrolled along the scanned dimension."""
        if scope.opsets.get("", 1) < 9:
            raise ValueError("before opset 9 it has a batch dimension; convert the model with onnx.version_converter")
        b, body, title = self.builder, _graph(attributes, "body", proto), _title(proto)
        count = attributes["num_scan_inputs"].i if "num_scan_inputs" in attributes else 0
        if not 1 <= count <= len(inputs):
            raise ValueError(f"num_scan_inputs is {count}, but it has {len(inputs)} inputs")
        carried, scanned = list(inputs[: len(inputs) - count]), inputs[len(inputs) - count :]
        results = len(body.output) - len(carried)

        def listed(name: str, length: int) -> list[int]:
            return list(attributes[name].ints) if name in attributes else [0] * length

        axes = [a % b.rank(x) for a, x in zip(listed("scan_input_axes", count), scanned, strict=True)]
        backward = listed("scan_input_directions", count)
        steps = b.shape(scanned[0])[axes[0]]
        if steps > UNROLLED:
            raise ModelError(f"{title} runs {steps} times, too many to unroll")
        collected: list[list[str]] = [[] for _ in range(results)]
        for step in range(steps):
            b.base = f"{title}/{step}"
            rows = [
                shapes.picked(b, x, axis, steps - 1 - step if back else step)
                for x, axis, back in zip(scanned, axes, backward, strict=True)
            ]
            made = self._subgraph(body, (*carried, *rows), scope)
            carried = made[: len(carried)]
            for column, row in zip(collected, made[len(carried) :], strict=True):
                column.append(row)
        ends = zip(
            collected, listed("scan_output_axes", results), listed("scan_output_directions", results), strict=True
        )
        stacks = [self._stacked(column[::-1] if back else column, axis, title) for column, axis, back in ends]
        self._bind(proto.output, [*carried, *stacks], scope)

    def _stacked(self, rows: Sequence[str], axis: int, title: str) -> str:
        b = self.builder
        if not rows:
            raise ModelError(f"{title} runs not even once, so the shape of its output is not known")
        shape = list(b.shape(rows[0]))
        position = axis % (len(shape) + 1)
        shape.insert(position, 1)
        parts = [shapes.reshaped(b, row, shape) for row in rows]
        return parts[0] if len(parts) == 1 else b.emit("concat", *parts, axis=position)

    def _standard_function(
        self, proto: NodeProto, call: Call, attributes: Mapping[str, AttributeProto]
    ) -> tuple[FunctionProto, Mapping[str, AttributeProto]]:
        """The definition that the standard gives of an operator in terms of others, and all its attributes."""
        try:
            # The stubs of onnx 1.23 lack half of OpSchema.
            schema: Any = onnx.defs.get_schema(call.kind, call.version, call.domain)
        except onnx.defs.SchemaError:
            raise ModelError(_unknown(call)) from None
        defaults = {k: a.default_value for k, a in schema.attributes.items() if a.default_value.name}
        body = self._body(schema, proto, call, attributes)
        if body is None:
            raise ModelError(_unknown(call))
        return body, {**defaults, **attributes}

    def _body(
        self, schema: Any, proto: NodeProto, call: Call, attributes: Mapping[str, AttributeProto]
    ) -> FunctionProto | None:
        if schema.has_function:
            usable = [v for v in schema.function_opset_versions if v <= call.version] or schema.function_opset_versions
            return _parsed_function(schema.get_function_with_opset_version(max(usable)))
        if not schema.has_context_dependent_function:
            return None
        concrete = NodeProto()
        concrete.CopyFrom(proto)
        del concrete.attribute[:]
        concrete.attribute.extend(attributes.values())
        types = [
            helper.make_tensor_type_proto(
                helper.np_dtype_to_tensor_dtype(np.dtype(self.builder.dtype(i))), self.builder.shape(i)
            ).SerializeToString()
            if i
            else onnx.TypeProto().SerializeToString()
            for i in call.inputs
        ]
        versions = schema.context_dependent_function_opset_versions
        usable = [v for v in versions if v <= call.version] or versions
        try:
            body = schema.get_context_dependent_function_with_opset_version(
                max(usable), concrete.SerializeToString(), types
            )
        except RuntimeError as error:  # onnx's own parser of function bodies gives up
            raise ModelError(f"{call.title}: its definition cannot be built from its attributes and shapes") from error
        return _parsed_function(body)


HANDLED_DOMAINS = ("",)

CONTROL = {"If": Importer._branch, "Loop": Importer._loop, "Scan": Importer._scan}


def _title(proto: NodeProto) -> str:
    return titled(proto.op_type, proto.name, proto.output)


def _graph(attributes: Mapping[str, AttributeProto], name: str, proto: NodeProto) -> GraphProto:
    if name not in attributes:
        raise ModelError(f"{_title(proto)} has no {name}")
    return attributes[name].g


def _parsed_function(body: bytes | FunctionProto) -> FunctionProto:
    if isinstance(body, FunctionProto):
        return body
    out = FunctionProto()
    out.ParseFromString(body)
    return out


def _unknown(call: Call) -> str:
    name = f"{call.domain or 'ai.onnx'}::{call.kind}"
    known = call.domain == "" and onnx.defs.has(call.kind, "")
    return (
        f"operator {name if name.isprintable() else shown(name)} ({call.title}) is {'not supported' if known else 'unknown'}; "
        f"replace it by other operators of ai.onnx, or define it as a function of the model"
    )


def _bound_attribute(a: AttributeProto, bindings: Mapping[str, AttributeProto]) -> AttributeProto | None:
    """The attribute itself, or inside a function what the caller gave for it; None if the caller gave nothing."""
    if not a.ref_attr_name:
        return a
    given = bindings.get(a.ref_attr_name)
    if given is None:
        return None
    out = AttributeProto()
    out.CopyFrom(given)
    out.name = a.name
    return out


def _without(node: NodeProto, absent: set[str]) -> NodeProto:
    """Optional inputs that the caller left out are absent inside as well."""
    if not absent.intersection(node.input):
        return node
    out = NodeProto()
    out.CopyFrom(node)
    out.input[:] = ["" if i in absent else i for i in node.input]
    return out


def _refuse_doubles(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ModelError(f"value {shown(name)} is defined twice; every value has one origin")
        seen.add(name)


def _ordered(nodes: Sequence[NodeProto], scope: Scope) -> Iterator[NodeProto]:
    """Topological order, the given one where possible. A cycle, an undefined or a doubly written value is refused."""
    maker: dict[str, int] = {}
    for at, node in enumerate(nodes):
        for name in filter(None, node.output):
            if name in maker or name in scope.names:
                raise ModelError(f"value {shown(name)} is written twice; every value has one origin")
            maker[name] = at
    needs = [{maker[i] for i in _inputs(node) if i in maker} for node in nodes]
    users: dict[int, list[int]] = {}
    for at, before in enumerate(needs):
        for b in before:
            users.setdefault(b, []).append(at)
    waiting = [len(before) for before in needs]
    ready = [at for at, count in enumerate(waiting) if count == 0][::-1]
    done = 0
    while ready:
        at = ready.pop()
        done += 1
        yield nodes[at]
        for user in sorted(users.get(at, ()), reverse=True):
            waiting[user] -= 1
            if waiting[user] == 0:
                ready.append(user)
    if done < len(nodes):
        stuck = next(n for n, count in zip(nodes, waiting, strict=True) if count)
        raise ModelError(f"{_title(stuck)} is in a cycle, or behind one; a graph has none")


def _inputs(node: NodeProto) -> set[str]:
    """Own inputs, and what its subgraphs take from outside."""
    names = set(node.input)
    for a in node.attribute:
        if a.type == AttributeProto.GRAPH:
            names |= captured(a.g)
    return names - {""}
