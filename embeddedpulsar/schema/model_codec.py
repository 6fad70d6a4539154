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
    item_hint,
    library_of,
    map_hint,
    places,
    plain_hint,
    primitive_base,
)

Step = Callable[[Any], Any]
# How text is read.
_READ: Final[dict[Any, Step]] = {
    datetime.datetime: datetime.datetime.fromisoformat,
    datetime.date: datetime.date.fromisoformat,
    datetime.time: datetime.time.fromisoformat,
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
    if hasattr(hint, "model_validate_json"):
        return ModelCodec(definition, _pydantic_bytes, hint.model_validate_json, forms.check_of(hint))
    if isinstance(hint, type) and hasattr(hint, "__struct_fields__"):
        import msgspec

        decode: Step = msgspec.json.Decoder(hint).decode
        return ModelCodec(definition, msgspec.json.Encoder().encode, decode, forms.check_of(hint))
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
    kind = type(value)
    if value is None or kind in (str, int, float, bool):
        return value
    if isinstance(value, Enum):
        return plain_form(value.value)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, TEXTS):
        return value.isoformat() if hasattr(value, "isoformat") else str(value)
    if isinstance(value, dict):
        return {_key(key): plain_form(item) for key, item in value.items()}
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
        classes = tuple(dict if library_of(one) == TYPED_DICT else one for one in branches)
        if hint is Any:
            return lambda value: None
        if all(isinstance(one, type) for one in classes):
            expected = classes if len(classes) > 1 else classes[0]

            def check(value: Any) -> None:
                if not isinstance(value, expected):
                    text = f"Invalid record obj of type {type(value)} - expected type is {expected}"
                    if isinstance(value, dict) and len(classes) > 1:
                        names = ", ".join(one.__name__ for one in classes)
                        text += f"; a dict, or a row of a frame, is none of {names}: send an object of one"
                    raise TypeError(text)

            return check
        plain, built = self.plain_of(hint), self.built_of(hint)

        def check_parts(value: Any) -> None:
            try:
                found = built(plain(value))
            except ValueError as error:
                raise TypeError(f"{value!r} is not of type {hint}: {error}") from error
            if not isinstance(value, type(found)):
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
        if branches is not None:
            return self._plain_union(branches)
        item = item_hint(hint)
        if item is not ABSENT:
            step = self.plain_of(item)
            return lambda value: [step(one) for one in value] if _is_listed(value) else plain_form(value)
        parts = places(hint)
        if parts is not None:
            steps = [self.plain_of(part) for part in parts]
            return lambda value: [step(one) for step, one in zip(steps, value, strict=True)]
        values = map_hint(hint)
        if values is not ABSENT:
            each = self.plain_of(values)
            return lambda value: (
                {_key(key): each(one) for key, one in value.items()}
                if isinstance(value, dict)
                else plain_form(value)
            )
        library = library_of(hint)
        if library is not None and (self._is_avro or library not in (PYDANTIC, STRUCT)):
            return self._plain_model(hint, library)
        if not self._is_avro:
            return plain_form
        return self._avro_scalar(hint)

    def _avro_scalar(self, hint: Any) -> Step:
        if hint is Any:
            return any_form
        if isinstance(hint, type) and issubclass(hint, Enum):
            return lambda value: value.name if isinstance(value, Enum) else value
        if primitive_base(hint) is bytes:
            return lambda value: value
        return plain_form

    def _plain_model(self, kind: Any, library: str) -> Step:
        if library == RECORD:
            return builtin_of if self._is_avro else plain_form
        attributes = attributes_of(kind)
        steps = [(one.name, one.member, self.plain_of(one.hint)) for one in attributes]
        if not self._is_avro:  # what the class computes is of use to programs of other languages
            steps += [(name, name, plain_form) for name in _computed_fields(kind)]
        if library == TYPED_DICT:
            known = {name: step for name, _, step in steps}

            def of_dict(value: Any) -> Any:
                if not isinstance(value, dict):
                    raise TypeError(f"Invalid record obj of type {type(value)} - expected type is {kind}")
                unknown = value.keys() - known.keys()
                if unknown:
                    raise TypeError(f"{kind.__name__} has no key {min(unknown, key=str)!r}")
                if self._is_avro and len(value) < len(known):
                    missing = next(name for name in known if name not in value)
                    raise TypeError(f"a message in Avro has all keys of {kind.__name__}: give {missing!r}")
                return {name: known[name](one) for name, one in value.items()}

            return of_dict

        def of_model(value: Any) -> Any:
            if isinstance(value, kind):
                return {name: step(getattr(value, member)) for name, member, step in steps}
            if library_of(type(value)) is not None:
                raise TypeError(f"{value!r} is not of type {kind}")
            return plain_form(value)  # left to the decoder, as other attributes of another type are

        return of_model

    def _plain_union(self, branches: tuple[Any, ...]) -> Step:
        steps = {one: self.plain_of(one) for one in branches}
        models = [one for one in branches if library_of(one) is not None]
        tags = {} if self._is_avro else self._tags(models)
        by_class = {one: steps[one] for one in branches if isinstance(one, type)}
        others = [steps[one] for one in branches if one not in by_class]

        def plain(value: Any) -> Any:
            for kind in type(value).__mro__:
                step = by_class.get(kind)
                if step is None:
                    continue
                form = step(value)
                if self._is_avro and len(models) > 1 and kind in models:
                    return self._names[kind], form
                tag = tags.get(kind)
                return form if tag is None else {tag[0]: tag[1], **form}
            for step in others:
                try:
                    return step(value)
                except (TypeError, ValueError, AttributeError):
                    continue
            return plain_form(value)

        return plain

    def _tags(self, models: list[Any]) -> dict[Any, tuple[str, str]]:
        """By model of a union: the key and the value that distinguish it, where no attribute does."""
        if len(models) < 2 or _discriminator(models) is not None:
            return {}
        names = [self._names[one] for one in models]
        taken = {attribute.name for one in models for attribute in attributes_of(one)}
        key = next((tag for tag in _TAGS if tag not in taken), None)
        if key is None:
            raise TypeError(
                f"the models {', '.join(names)} of a union look alike in JSON; give each an attribute "
                "of the same name, with a Literal of its own"
            )
        return {one: (key, name) for one, name in zip(models, names, strict=True)}

    # -- to values

    def _make_built(self, hint: Any) -> Step:
        branches = alternatives(hint)
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
            return lambda value: {key: each(one) for key, one in _of(dict, value, hint).items()}
        if isinstance(hint, type) and issubclass(hint, Enum):
            return self._built_member(hint)
        library = library_of(hint)
        return self._built_scalar(hint) if library is None else self._built_model(hint, library)

    def _built_literal(self, hint: Any) -> Step:
        allowed = get_args(hint)
        forms = {(type(form := self._avro_literal(one)), form): one for one in allowed}

        def literal(value: Any) -> Any:
            found = forms.get((type(value), value), ABSENT) if not isinstance(value, list | dict) else ABSENT
            if found is ABSENT:
                raise TypeError(f"{value!r} is none of {allowed}")
            return found

        return literal

    def _avro_literal(self, value: Any) -> Any:
        return value.name if self._is_avro and isinstance(value, Enum) else plain_form(value)

    def _built_list(self, hint: Any, item: Any) -> Step:
        step = self.built_of(item)
        origin = get_origin(hint) or hint
        make = origin if origin in (set, frozenset, tuple) else list
        return lambda value: make([step(one) for one in _of(list, value, hint)])

    def _built_tuple(self, hint: Any, parts: tuple[Any, ...]) -> Step:
        steps = [self.built_of(part) for part in parts]

        def built(value: Any) -> Any:
            if not isinstance(value, list) or len(value) != len(steps):
                raise TypeError(f"{value!r} is not of type {hint}")
            return tuple(step(one) for step, one in zip(steps, value, strict=True))

        return built

    def _built_member(self, kind: Any) -> Step:
        if not self._is_avro:
            return lambda value: kind(tuple(value) if isinstance(value, list) else value)
        members = kind.__members__

        def member(value: Any) -> Any:
            if not isinstance(value, str) or value not in members:
                raise ValueError(f"{value!r} is no member of {kind.__name__}")
            return members[value]

        return member

    def _built_scalar(self, hint: Any) -> Step:
        base = primitive_base(hint)
        if base in _READ:
            read = _READ[base]
            return lambda value: read(_of(str, value, hint))

        def scalar(value: Any) -> Any:
            if base is float and type(value) is int:
                value = float(value)
            elif base is bytes and isinstance(value, str):
                value = value.encode()
            if type(value) is not base:
                raise TypeError(f"{value!r} is not of type {hint}")
            return value if hint is base else hint(value)

        return scalar

    def _built_model(self, kind: Any, library: str) -> Step:
        if library == RECORD:
            return partial(stored_record, kind)
        if not self._is_avro and library == PYDANTIC:
            return lambda value: kind.model_validate_json(json.dumps(_of(dict, value, kind)))
        if not self._is_avro and library == STRUCT:
            import msgspec

            return lambda value: msgspec.convert(_of(dict, value, kind), kind)
        attributes = attributes_of(kind)
        # A model of pydantic takes its attributes by their names in JSON.
        steps = {
            one.name: (one.name if library == PYDANTIC else one.member, self.built_of(one.hint))
            for one in attributes
        }

        def built(value: Any) -> Any:
            # What the class does not know is left out: a newer program may have written it.
            known = {}
            for name, one in _of(dict, value, kind).items():
                if name in steps:
                    member, step = steps[name]
                    known[member] = step(one)
            return kind.model_validate(known) if library == PYDANTIC else kind(**known)

        if library == TYPED_DICT:
            required = {one.name for one in attributes if one.default is ABSENT}

            def of_dict(value: Any) -> Any:
                found = built(value)
                if not required <= found.keys():
                    raise TypeError(f"{kind.__name__} lacks the key {min(required - found.keys())!r}")
                return found

            return of_dict
        return built

    def _built_union(self, branches: tuple[Any, ...]) -> Step:
        models = [one for one in branches if library_of(one) is not None]
        steps = [self.built_of(one) for one in branches]
        by_name = {self._names[one]: self.built_of(one) for one in models}
        key, by_tag = self._by_tag(models)

        def built(value: Any) -> Any:
            if self._is_avro and isinstance(value, tuple):
                name, value = value
                return by_name[name.rpartition(".")[2]](value)
            if key is not None and isinstance(value, dict):
                tag = value.get(key, ABSENT)
                found = by_tag.get(tag) if not isinstance(tag, list | dict) else None
                if found is not None:
                    return found(value)
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
                plain_form(value): self.built_of(one)
                for one in models
                for value in _literals(one).get(name, ())
            }
        tags = {} if self._is_avro else self._tags(models)
        if not tags:
            return None, {}
        key = next(iter(tags.values()))[0]
        return key, {value: _without(key, self.built_of(one)) for one, (_, value) in tags.items()}


def _step(steps: dict[Any, Step], hint: Any, make: Callable[[Any], Step]) -> Step:
    """The step of a type; while it is made, one that finds it later."""
    try:
        found = steps.get(hint)
    except TypeError:  # a Literal or an annotation that cannot be hashed
        return make(hint)
    if found is None:
        steps[hint] = lambda value: steps[hint](value)
        found = steps[hint] = make(hint)
    return found


def _without(key: str, step: Step) -> Step:
    return lambda value: step({name: one for name, one in value.items() if name != key})


def _of(kind: Any, value: Any, hint: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is not of type {hint}")
    return value


def _is_listed(value: Any) -> bool:
    return isinstance(value, list | tuple | set | frozenset)


def _computed_fields(kind: Any) -> list[str]:
    """The fields of a dataclass that are no arguments."""
    fields = getattr(kind, "__dataclass_fields__", {})
    return [name for name, field in fields.items() if not field.init and field._field_type.name == "_FIELD"]


def _literals(kind: Any) -> dict[str, tuple[Any, ...]]:
    """The attributes of a model that only have certain values; the tag of a struct is one."""
    found = {
        one.name: get_args(hint)
        for one in attributes_of(kind)
        if get_origin(hint := plain_hint(one.hint)) is Literal
    }
    config = getattr(kind, "__struct_config__", None)
    if config is not None and config.tag is not None:
        found[config.tag_field] = (config.tag,)
    return found


def _discriminator(models: Iterable[Any]) -> str | None:
    """The attribute that has other values in each of the models; None if there is none."""
    literals = [_literals(one) for one in models]
    if len(literals) < 2:
        return None
    for name in literals[0]:
        values = [plain_form(value) for one in literals for value in one.get(name, ())]
        if all(name in one for one in literals) and len(set(values)) == len(values):
            return name
    return None
