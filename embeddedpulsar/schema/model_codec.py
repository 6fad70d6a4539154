"""Encoders and decoders of models and of type hints, for JSON and for Avro."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any, Final, Literal, get_args, get_origin
from uuid import UUID

from embeddedpulsar.records import NamedTuple
from embeddedpulsar.schema.definition import Record, builtin_of, stored_record
from embeddedpulsar.schema.json_text import loads, record_bytes
from embeddedpulsar.schema.models import (
    ABSENT,
    PYDANTIC,
    RECORD,
    STRUCT,
    TEXTS,
    TYPED_DICT,
    Definer,
    alternatives,
    attributes_of,
    duration_of,
    item_hint,
    library_of,
    map_hint,
    places,
    plain_hint,
    primitive_base,
    text_of,
)

Step = Callable[[Any], Any]
# How text is read.
_READ: Final[dict[Any, Step]] = {
    datetime.datetime: datetime.datetime.fromisoformat,
    datetime.date: datetime.date.fromisoformat,
    datetime.time: datetime.time.fromisoformat,
    datetime.timedelta: duration_of,
    Decimal: Decimal,
    UUID: UUID,
}
_TAGS: Final = ("type", "__type__")


class ModelCodec(NamedTuple):
    """What a schema needs of a type.

    Attributes:
        definition: in Avro's notation.
        encode: the JSON text, or what Avro's library takes, of a value.
        decode: the opposite.
        check: raises TypeError for what is no value of the type.
    """

    definition: Any
    encode: Step
    decode: Step
    check: Step


def json_codec(hint: Any) -> ModelCodec:
    """The codec for JSON text of a model class, or of another type.

    Raises:
        TypeError: the type, or one inside of it, has no form in JSON.
    """
    definition, forms = _compiled(hint, is_avro=False)
    # pydantic and msgspec encode and decode their own models, faster than steps in Python, and validate them.
    if hasattr(hint, "model_validate_json"):
        return ModelCodec(definition, _pydantic_bytes, hint.model_validate_json, forms.check_of(hint))
    if isinstance(hint, type) and hasattr(hint, "__struct_fields__"):
        import msgspec

        decode: Step = msgspec.json.Decoder(hint).decode
        return ModelCodec(definition, msgspec.json.Encoder().encode, decode, forms.check_of(hint))
    # All other types: steps from values to what `json` writes, and back.
    plain, built = forms.plain_of(hint), forms.built_of(hint)
    return ModelCodec(
        definition,
        lambda value: json.dumps(plain(value), ensure_ascii=False, separators=(",", ":")).encode(),
        lambda data: built(loads(data)),
        forms.check_of(hint),
    )


def json_builder(hint: Any) -> Step:
    """What makes values of a type of what JSON text has: dicts, lists, texts, numbers. Errors are those of
    decoders."""
    return _compiled(hint, is_avro=False)[1].built_of(hint)


def avro_codec(hint: Any) -> ModelCodec:
    """The codec for what Avro's library writes and reads, of a model class.

    Raises:
        TypeError: the class is no model, or a type inside of it has no form.
    """
    if library_of(hint) is None:
        text = "is not a Record, a dataclass, a pydantic model, a msgspec.Struct, a TypedDict or a NamedTuple"
        raise TypeError(f"{getattr(hint, '__name__', hint)} {text}")
    definition, forms = _compiled(hint, is_avro=True)
    return ModelCodec(definition, forms.plain_of(hint), forms.built_of(hint), forms.check_of(hint))


def _compiled(hint: Any, *, is_avro: bool) -> tuple[Any, _Forms]:
    if hint is None or isinstance(hint, str):
        raise TypeError(f"{hint!r} is not a Record, a model or a type")
    definer = Definer()
    definition = definer.definition(hint)
    return definition, _Forms(definer.names, is_avro=is_avro)


def _pydantic_bytes(value: Any) -> bytes:
    text: str = value.model_dump_json(by_alias=True)
    return text.encode()


# -- values without their types ---------------------------------------------------------------------


def plain_form(value: Any) -> Any:
    """A value of the kinds that `json` knows.

    Raises:
        TypeError: it has no JSON form.
    """
    # By frequency: the exact types of JSON first, which take no `isinstance`.
    kind = type(value)
    if value is None or kind in (str, int, float, bool):
        return value
    # Before the types that an enumeration may be derived from: `class Color(str, Enum)` is a text, too.
    if isinstance(value, Enum):
        return plain_form(value.value)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, TEXTS):
        return text_of(value)
    if isinstance(value, dict):
        return {_key(key): plain_form(item) for key, item in value.items()}
    # A named tuple is a list to Python, and an object in JSON.
    if isinstance(value, list | tuple | set | frozenset) and not hasattr(value, "_field_defaults"):
        return [plain_form(item) for item in value]
    if isinstance(value, Record):
        return json.loads(record_bytes(value))
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", by_alias=True)
    if hasattr(value, "__struct_fields__"):
        import msgspec

        return msgspec.to_builtins(value, str_keys=True)
    if hasattr(value, "__dataclass_fields__"):
        return {name: plain_form(getattr(value, name)) for name in value.__dataclass_fields__}
    if hasattr(value, "_asdict"):
        return {name: plain_form(item) for name, item in value._asdict().items()}
    # Classes derived from the types of JSON.
    if isinstance(value, str | int | float):
        return value
    raise TypeError(f"{kind.__name__} has no JSON form")


def _key(key: Any) -> str:
    key = key.value if isinstance(key, Enum) else key
    if not isinstance(key, str):
        raise TypeError(f"the keys of a dict are texts, and {key!r} is none")
    return key


def any_form(value: Any) -> Any:
    """Any value of JSON in the record that Avro has for it."""
    # Avro has no type for any value, so its library's definition wraps each level into a record with a field
    # `value`.
    value = plain_form(value)
    if isinstance(value, list):
        value = [any_form(item) for item in value]
    elif isinstance(value, dict):
        value = {key: any_form(item) for key, item in value.items()}
    return {"value": value}


def _from_any(form: Any) -> Any:
    value = form["value"]
    if isinstance(value, list):
        return [_from_any(item) for item in value]
    return {key: _from_any(item) for key, item in value.items()} if isinstance(value, dict) else value


# -- values by their types --------------------------------------------------------------------------


class _Forms:
    """The steps from values of types to what `json` or Avro's library knows, and back. A step is made once
    for each type; one that contains itself finds its own.

    Args:
        names: of the classes in the definition.
        is_avro: enumerations by name, bytes as they are, and records of a union with their names.
    """

    def __init__(self, names: dict[Any, str], *, is_avro: bool) -> None:
        self._names: Final = names
        self._is_avro: Final = is_avro
        self._plain_steps: Final[dict[Any, Step]] = {}
        self._built_steps: Final[dict[Any, Step]] = {}

    def check_of(self, given: Any) -> Step:
        """What refuses values of another type; the attributes of a model are not checked."""
        hint = plain_hint(given)
        branches = alternatives(hint) or (hint,)
        classes = tuple(dict if library_of(branch) == TYPED_DICT else branch for branch in branches)
        # Any takes everything that has a form.
        if hint is Any:
            return lambda value: None
        # Classes alone: `isinstance` decides.
        if all(isinstance(kind, type) for kind in classes):
            expected = classes if len(classes) > 1 else classes[0]

            def check(value: Any) -> None:
                if not isinstance(value, expected):
                    text = f"Invalid record obj of type {type(value)} - expected type is {expected}"
                    if isinstance(value, dict) and len(classes) > 1:
                        names = ", ".join(kind.__name__ for kind in classes)
                        text += f"; a dict, or a row of a frame, is none of {names}: send an object of one"
                    raise TypeError(text)

            return check
        # A type such as list[int] has no `isinstance`: a value is of it if it comes back from its form.
        plain, built = self.plain_of(hint), self.built_of(hint)

        def check_parts(value: Any) -> None:
            try:
                rebuilt = built(plain(value))
            except ValueError as error:
                raise TypeError(f"{value!r} is not of type {hint}: {error}") from error
            # The step back may make another class of it, a list of a tuple; the caller gave the wrong one
            # then.
            if not isinstance(value, type(rebuilt)):
                raise TypeError(f"Invalid record obj of type {type(value)} - expected type is {hint}")

        return check_parts

    def plain_of(self, given: Any) -> Step:
        """The step from a value of a type."""
        hint = plain_hint(given)
        return _step(self._plain_steps, hint, self._make_plain)

    def built_of(self, given: Any) -> Step:
        """The step to a value of a type. It raises TypeError for another type, and ValueError for a text that
        is not the form of the type, or no member of the enumeration."""
        hint = plain_hint(given)
        return _step(self._built_steps, hint, self._make_built)

    # -- from values

    def _make_plain(self, hint: Any) -> Step:
        branches = alternatives(hint)
        # In the order in which hints are distinguished: a union, a list, a tuple of places, a map, a model,
        # and what is left.
        if branches is not None:
            return self._plain_union(branches)
        item = item_hint(hint)
        if item is not ABSENT:
            step = self.plain_of(item)
            # A value of another type is left to the decoder to refuse, with its own text.
            return lambda value: (
                [step(item_value) for item_value in value] if _is_listed(value) else plain_form(value)
            )
        parts = places(hint)
        if parts is not None:
            steps = [self.plain_of(part) for part in parts]
            return lambda value: [step(item_value) for step, item_value in zip(steps, value, strict=True)]
        values = map_hint(hint)
        if values is not ABSENT:
            each = self.plain_of(values)
            return lambda value: (
                {_key(key): each(item_value) for key, item_value in value.items()}
                if isinstance(value, dict)
                else plain_form(value)
            )
        library = library_of(hint)
        # pydantic and msgspec give their own JSON form in `plain_form`; for Avro the attributes are needed
        # one by one.
        if library is not None and (self._is_avro or library not in (PYDANTIC, STRUCT)):
            return self._plain_model(hint, library)
        # JSON needs no more than the value to choose its form.
        if not self._is_avro:
            return plain_form
        return self._avro_scalar(hint)

    def _avro_scalar(self, hint: Any) -> Step:
        if hint is Any:
            return any_form
        if isinstance(hint, type) and issubclass(hint, Enum):
            # Avro's library takes the name of a member, and bytes as they are.
            return lambda value: value.name if isinstance(value, Enum) else value
        if get_origin(hint) is Literal:
            return self._avro_literal
        if primitive_base(hint) is bytes:
            return lambda value: value
        return plain_form

    def _plain_model(self, kind: Any, library: str) -> Step:
        if library == RECORD:
            return builtin_of if self._is_avro else plain_form
        attributes = attributes_of(kind)
        steps = [
            (attribute.name, attribute.member, self.plain_of(attribute.hint)) for attribute in attributes
        ]
        if not self._is_avro:  # what the class computes is of use to programs of other languages
            steps += [(name, name, plain_form) for name in _computed_fields(kind)]
        if library == TYPED_DICT:
            # A TypedDict is a dict: the keys are checked here, since no class does it.
            known = {name: step for name, _, step in steps}

            def of_dict(value: Any) -> Any:
                if not isinstance(value, dict):
                    raise TypeError(f"Invalid record obj of type {type(value)} - expected type is {kind}")
                unknown = value.keys() - known.keys()
                if unknown:
                    raise TypeError(f"{kind.__name__} has no key {min(unknown, key=str)!r}")
                # Avro writes every field; a key that is absent in JSON is simply not there.
                if self._is_avro and len(value) < len(known):
                    missing = next(name for name in known if name not in value)
                    raise TypeError(f"a message in Avro has all keys of {kind.__name__}: give {missing!r}")
                return {name: known[name](item_value) for name, item_value in value.items()}

            return of_dict

        def of_model(value: Any) -> Any:
            if isinstance(value, kind):
                return {name: step(getattr(value, member)) for name, member, step in steps}
            # An object of another model is a mistake of the caller; its attributes might fit by chance.
            if library_of(type(value)) is not None:
                raise TypeError(f"{value!r} is not of type {kind}")
            return plain_form(value)  # left to the decoder, as other attributes of another type are

        return of_model

    def _plain_union(self, branches: tuple[Any, ...]) -> Step:
        steps = {branch: self.plain_of(branch) for branch in branches}
        models = [branch for branch in branches if library_of(branch) is not None]
        # In JSON nothing says which model an object is, unless an attribute does: then a tag is added.
        tags = {} if self._is_avro else self._tags(models)
        by_class = {branch: steps[branch] for branch in branches if isinstance(branch, type)}
        others = [steps[branch] for branch in branches if branch not in by_class]

        def plain(value: Any) -> Any:
            # The class of the value decides, or the nearest one that it is derived from.
            for kind in type(value).__mro__:
                step = by_class.get(kind)
                if step is None:
                    continue
                form = step(value)
                # Avro's library takes a pair of name and record where a union has several.
                if self._is_avro and len(models) > 1 and kind in models:
                    return self._names[kind], form
                tag = tags.get(kind)
                return form if tag is None else {tag[0]: tag[1], **form}
            # Hints that are no classes, list[int] for example: the first that takes the value.
            for step in others:
                try:
                    return step(value)
                except (TypeError, ValueError, AttributeError):
                    continue
            # None takes it: the decoder says so.
            return plain_form(value)

        return plain

    def _tags(self, models: list[Any]) -> dict[Any, tuple[str, str]]:
        """By model of a union: the key and the value that distinguish it, where no attribute does."""
        # One model needs no tag, nor do models that an attribute with a Literal distinguishes.
        if len(models) < 2 or _discriminator(models) is not None:
            return {}
        names = [self._names[model] for model in models]
        taken = {attribute.name for model in models for attribute in attributes_of(model)}
        # The tag must not be an attribute of one of them.
        key = next((tag for tag in _TAGS if tag not in taken), None)
        if key is None:
            raise TypeError(
                f"the models {', '.join(names)} of a union look alike in JSON; give each an attribute "
                "of the same name, with a Literal of its own"
            )
        return {model: (key, name) for model, name in zip(models, names, strict=True)}

    # -- to values

    def _make_built(self, hint: Any) -> Step:
        branches = alternatives(hint)
        # The same order as in `_make_plain`; a Literal is one more case, since its forms are known.
        if branches is not None:
            return self._built_union(branches)
        if hint is Any:
            return _from_any if self._is_avro else lambda value: value
        if get_origin(hint) is Literal:
            return self._built_literal(hint)
        item = item_hint(hint)
        if item is not ABSENT:
            return self._built_list(hint, item)
        parts = places(hint)
        if parts is not None:
            return self._built_tuple(hint, parts)
        values = map_hint(hint)
        if values is not ABSENT:
            each = self.built_of(values)
            return lambda value: {key: each(item_value) for key, item_value in _of(dict, value, hint).items()}
        if isinstance(hint, type) and issubclass(hint, Enum):
            return self._built_member(hint)
        library = library_of(hint)
        return self._built_scalar(hint) if library is None else self._built_model(hint, library)

    def _built_literal(self, hint: Any) -> Step:
        allowed = get_args(hint)
        # With the type: 1, 1.0 and True are one key of a dict.
        forms = {
            (type(form := self._avro_literal(literal_value)), form): literal_value
            for literal_value in allowed
        }

        def literal(value: Any) -> Any:
            # A list or dict is no literal, and cannot be a key.
            member = forms.get((type(value), value), ABSENT) if not isinstance(value, list | dict) else ABSENT
            if member is ABSENT:
                raise TypeError(f"{value!r} is none of {allowed}")
            return member

        return literal

    def _avro_literal(self, value: Any) -> Any:
        return value.name if self._is_avro and isinstance(value, Enum) else plain_form(value)

    def _built_list(self, hint: Any, item: Any) -> Step:
        step = self.built_of(item)
        origin = get_origin(hint) or hint
        # A Sequence and the like become lists.
        make = origin if origin in (set, frozenset, tuple) else list
        return lambda value: make([step(item_value) for item_value in _of(list, value, hint)])

    def _built_tuple(self, hint: Any, parts: tuple[Any, ...]) -> Step:
        steps = [self.built_of(part) for part in parts]

        def built(value: Any) -> Any:
            if not isinstance(value, list) or len(value) != len(steps):
                raise TypeError(f"{value!r} is not of type {hint}")
            return tuple(step(item_value) for step, item_value in zip(steps, value, strict=True))

        return built

    def _built_member(self, kind: Any) -> Step:
        if not self._is_avro:
            # JSON has no tuples: a member whose value is one came as a list.
            return lambda value: kind(tuple(value) if isinstance(value, list) else value)
        members = kind.__members__

        def member(value: Any) -> Any:
            if not isinstance(value, str) or value not in members:
                raise ValueError(f"{value!r} is no member of {kind.__name__}")
            return members[value]

        return member

    def _built_scalar(self, hint: Any) -> Step:
        base = primitive_base(hint)
        # Times, decimal numbers and UUIDs are texts in JSON and in Avro.
        if base in _READ:
            read = _READ[base]
            return lambda value: read(_of(str, value, hint))

        def scalar(value: Any) -> Any:
            # JSON of other languages writes 1 for 1.0.
            if base is float and type(value) is int:
                value = float(value)
            elif base is bytes and isinstance(value, str):
                # JSON has texts for bytes, Avro has bytes.
                value = value.encode()
            # `type`, not `isinstance`: True is no number.
            if type(value) is not base:
                raise TypeError(f"{value!r} is not of type {hint}")
            # A class derived from the type is made of the value, a NewType is not called.
            return value if hint is base else hint(value)

        return scalar

    def _built_model(self, kind: Any, library: str) -> Step:
        if library == RECORD:
            return partial(stored_record, kind)
        # The library validates its own model, by its names in JSON.
        if not self._is_avro and library == PYDANTIC:
            return lambda value: kind.model_validate_json(json.dumps(_of(dict, value, kind)))
        if not self._is_avro and library == STRUCT:
            import msgspec

            return lambda value: msgspec.convert(_of(dict, value, kind), kind)
        attributes = attributes_of(kind)
        # A model of pydantic takes its attributes by their names in JSON.
        steps = {
            attribute.name: (
                attribute.name if library == PYDANTIC else attribute.member,
                self.built_of(attribute.hint),
            )
            for attribute in attributes
        }

        def built(value: Any) -> Any:
            # What the class does not know is left out: a newer program may have written it.
            known = {}
            for name, item_value in _of(dict, value, kind).items():
                if name in steps:
                    member, step = steps[name]
                    known[member] = step(item_value)
            return kind.model_validate(known) if library == PYDANTIC else kind(**known)

        if library == TYPED_DICT:
            required = {attribute.name for attribute in attributes if attribute.default is ABSENT}

            def of_dict(value: Any) -> Any:
                values = built(value)
                # `**known` of a TypedDict checks nothing.
                if not required <= values.keys():
                    raise TypeError(f"{kind.__name__} lacks the key {min(required - values.keys())!r}")
                return values

            return of_dict
        return built

    def _built_union(self, branches: tuple[Any, ...]) -> Step:
        models = [branch for branch in branches if library_of(branch) is not None]
        steps = [self.built_of(branch) for branch in branches]
        by_name = {self._names[model]: self.built_of(model) for model in models}
        key, by_tag = self._by_tag(models)

        def built(value: Any) -> Any:
            # Avro's library gives the name of the record that was written, with its namespace.
            if self._is_avro and isinstance(value, tuple):
                name, value = value
                return by_name[name.rpartition(".")[2]](value)
            # In JSON an attribute, or the tag, says which model it is.
            if key is not None and isinstance(value, dict):
                tag = value.get(key, ABSENT)
                tagged = by_tag.get(tag) if not isinstance(tag, list | dict) else None
                if tagged is not None:
                    return tagged(value)
            # Nothing says it: the first type that takes the value. An unknown tag comes here, too; it may be
            # of a newer program.
            for step in steps:
                try:
                    return step(value)
                except (TypeError, ValueError):
                    continue
            raise TypeError(f"{value!r} is of none of the types {branches}")

        return built

    def _by_tag(self, models: list[Any]) -> tuple[str | None, dict[Any, Step]]:
        """The key that distinguishes the models of a union, and the step for each of its values."""
        name = _discriminator(models)
        if name is not None:
            return name, {
                plain_form(literal): self.built_of(model)
                for model in models
                for literal in _literals(model).get(name, ())
            }
        tags = {} if self._is_avro else self._tags(models)
        if not tags:
            # The key is the same for all models of a union.
            return None, {}
        key = next(iter(tags.values()))[0]
        return key, {value: _without(key, self.built_of(model)) for model, (_, value) in tags.items()}


def _step(steps: dict[Any, Step], hint: Any, make: Callable[[Any], Step]) -> Step:
    """The step of a type; while it is made, one that finds it later."""
    try:
        step = steps.get(hint)
    except TypeError:  # a Literal or an annotation that cannot be hashed
        return make(hint)
    if step is None:
        # A type that contains itself finds this one while its own step is made: it looks the step up when it
        # is called.
        steps[hint] = lambda value: steps[hint](value)
        step = steps[hint] = make(hint)
    return step


def _without(key: str, step: Step) -> Step:
    # The tag is no attribute of the model.
    return lambda value: step({name: item_value for name, item_value in value.items() if name != key})


def _of(kind: Any, value: Any, hint: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is not of type {hint}")
    return value


def _is_listed(value: Any) -> bool:
    return isinstance(value, list | tuple | set | frozenset)


def _computed_fields(kind: Any) -> list[str]:
    """The fields of a dataclass that are no arguments."""
    fields = getattr(kind, "__dataclass_fields__", {})
    # `init=False`: the class computes them, so they are written and not read. ClassVar and InitVar have
    # another marker.
    return [name for name, field in fields.items() if not field.init and field._field_type.name == "_FIELD"]


def _literals(kind: Any) -> dict[str, tuple[Any, ...]]:
    """The attributes of a model that only have certain values; the tag of a struct is one."""
    literals = {
        attribute.name: get_args(hint)
        for attribute in attributes_of(kind)
        if get_origin(hint := plain_hint(attribute.hint)) is Literal
    }
    config = getattr(kind, "__struct_config__", None)
    if config is not None and config.tag is not None:
        literals[config.tag_field] = (config.tag,)
    return literals


def _discriminator(models: Iterable[Any]) -> str | None:
    """The attribute that has other values in each of the models; None if there is none."""
    literals = [_literals(literal_of) for literal_of in models]
    # A single model needs nothing to tell it apart.
    if len(literals) < 2:
        return None
    for name in literals[0]:
        values = [plain_form(value) for literal_of in literals for value in literal_of.get(name, ())]
        # Every model has the attribute, and no value occurs in two of them.
        if all(name in literal_of for literal_of in literals) and len(set(values)) == len(values):
            return name
    return None
