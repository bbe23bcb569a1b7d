"""Substrait's messages with nested relations and expressions left encoded.

A plan nests one message for each operator and each call, and decoders of protobuf refuse to
go deeper than a hundred or so: a sum of some thirty terms. Here the fields that nest are
``bytes``, which are encoded as messages are, so that decoding one message stops at the next
relation or expression, and whoever reads the plan decides how deep to go.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from substrait import algebra_pb2, plan_pb2

_Field = descriptor_pb2.FieldDescriptorProto
#: Messages that nest without end.
_NESTING = (".substrait.Expression", ".substrait.Rel")


def _messages() -> tuple[Any, ...]:
    pool = descriptor_pool.DescriptorPool()
    added: set[str] = set()

    def add(file: Any) -> None:
        if file.name in added:
            return
        added.add(file.name)
        for dependency in file.dependencies:
            add(dependency)
        copy = descriptor_pb2.FileDescriptorProto()
        file.CopyToProto(copy)
        for message in copy.message_type:
            _leave_encoded(message)
        pool.Add(copy)

    add(plan_pb2.DESCRIPTOR)
    add(algebra_pb2.DESCRIPTOR)
    names = ("Plan", "Rel", "Expression")
    found = (pool.FindMessageTypeByName(f"substrait.{name}") for name in names)
    return tuple(map(message_factory.GetMessageClass, found))


def _leave_encoded(message: Any) -> None:
    for field in message.field:
        if field.type_name in _NESTING:
            field.type = _Field.TYPE_BYTES
            field.ClearField("type_name")
    for nested in message.nested_type:
        _leave_encoded(nested)


PlanMessage, RelMessage, ExpressionMessage = _messages()
