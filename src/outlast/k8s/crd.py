"""The CustomResourceDefinition, made from the structs of `resource`."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import inspect

from outlast.k8s.resource import GROUP, KIND, PLURAL, VERSION, ElasticJobSpec, ElasticJobStatus

Manifest = dict[str, Any]
NUMBERS = {
    "ge": ("minimum", {}),
    "le": ("maximum", {}),
    "gt": ("minimum", {"exclusiveMinimum": True}),
    "lt": ("maximum", {"exclusiveMaximum": True}),
}
INT_OR_STRING = "x-kubernetes-int-or-string"
COLUMNS = [
    ("Phase", "string", ".status.phase", 0),
    ("Nodes", "string", ".status.nodes", 0),
    ("Generation", "integer", ".status.generation", 0),
    ("Step", "integer", ".status.step", 0),
    ("Restarts", "integer", ".status.restarts", 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
    ("Last-Fault", "string", ".status.lastFault.cause", 1),
]


def manifest() -> Manifest:
    """What `kubectl apply` needs before the first ElasticJob."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": PLURAL, "singular": KIND.lower(), "kind": KIND, "shortNames": ["ej"]},
            "versions": [_version()],
        },
    }


def _version() -> Manifest:
    schema = {
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": schema_of(ElasticJobSpec),
            "status": schema_of(ElasticJobStatus, defaults=False),
        },
    }
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicaSpecs.worker.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path, "priority": priority}
            for name, kind, path, priority in COLUMNS
        ],
    }


def schema_of(struct: type[msgspec.Struct], *, defaults: bool = True) -> Manifest:
    """The structural schema of a struct, with its defaults unless told otherwise."""
    return _schema(inspect.type_info(struct), defaults)


def _schema(info: inspect.Type, defaults: bool) -> Manifest:
    if isinstance(info, inspect.Metadata):
        extra = info.extra_json_schema or {}
        return extra if INT_OR_STRING in extra else _schema(info.type, defaults) | extra
    if isinstance(info, inspect.StructType):
        return _object(info, defaults)
    if isinstance(info, inspect.DictType):
        free = isinstance(info.value_type, inspect.AnyType)
        return {"type": "object"} | ({} if free else {"additionalProperties": _schema(info.value_type, defaults)})
    if isinstance(info, inspect.VarTupleType):
        return {"type": "array", "items": _schema(info.item_type, defaults)}
    if isinstance(info, inspect.LiteralType):
        return {"type": "string", "enum": list(info.values)}
    return _scalar(info)


def _scalar(info: inspect.Type) -> Manifest:
    if isinstance(info, inspect.BoolType):
        return {"type": "boolean"}
    if isinstance(info, inspect.StrType):
        found: Manifest = {"type": "string"}
        if info.pattern is not None:
            found["pattern"] = info.pattern
        if info.min_length is not None:
            found["minLength"] = info.min_length
        return found
    assert isinstance(info, inspect.IntType | inspect.FloatType), info
    found = {"type": "integer", "format": "int64"} if isinstance(info, inspect.IntType) else {"type": "number"}
    for bound, (name, also) in NUMBERS.items():
        if getattr(info, bound) is not None:
            found |= {name: getattr(info, bound)} | also
    return found


def _object(info: inspect.StructType, defaults: bool) -> Manifest:
    properties = {field.encode_name: _property(field, defaults) for field in info.fields}
    found: Manifest = {"type": "object", "properties": properties}
    required = [field.encode_name for field in info.fields if field.required]
    return found | ({"required": required} if required else {})


def _property(field: inspect.Field, defaults: bool) -> Manifest:
    found = _schema(field.type, defaults)
    if not defaults or field.required:
        return found
    # An object that is absent gets no defaults for its fields: an empty one has to come first.
    empty = isinstance(field.default, msgspec.Struct) or field.default_factory is dict
    if empty or field.default is not msgspec.NODEFAULT:
        found["default"] = {} if empty else msgspec.json.decode(msgspec.json.encode(field.default))
    return found
