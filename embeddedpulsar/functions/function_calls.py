"""Administration of functions.

The functions of a store: which there are, and whether they are to be run.

Giving one value to a function, and waiting for what it returns.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

from embeddedpulsar.client.client import Client
from embeddedpulsar.exceptions import (
    CorruptionError,
    InvalidConfiguration,
    NotAllowedError,
    SubscriptionNotFound,
    Timeout,
    TopicNotFound,
)
from embeddedpulsar.functions.engine import PolicyDocuments, SaysWhatThereIs, TopicAccess, TopicPolicy
from embeddedpulsar.functions.function_config import FunctionConfig
from embeddedpulsar.functions.io import Definition, input_schema, is_of_pattern, output_schema
from embeddedpulsar.functions.state import (
    NAMESPACE,
    SUPERVISOR,
    Changes,
    FunctionStats,
    FunctionStatus,
    StateLog,
    StateTable,
    has_subscribed,
    read_state,
    state_topic,
    stats_of,
    status_of,
)
from embeddedpulsar.functions.user_code import described, find_code, process_of
from embeddedpulsar.message_id import MessageId
from embeddedpulsar.schema.key_value import AutoProduceBytesSchema
from embeddedpulsar.topic_name import TopicName

if TYPE_CHECKING:
    from embeddedpulsar.functions.engine import Store, Topic


# The definitions are policies of the namespace `public/functions`: so they are in its document, change under
# the lock of the catalog, and every process is rung when one changes. The keys of functions begin with this
# prefix; the rest of the document belongs to policies.
_PREFIX: Final = "function."


class Definitions:
    """The definitions in the document of ``public/functions``: small, replaced as a whole, under the lock of
    the catalog. Any thread."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store: Final = store

    def all(self) -> dict[str, Definition | CorruptionError]:
        """All functions by their full names, sorted; for one that cannot be read, the error that says why.

        Raises:
            StorageError: the document is damaged.
        """
        store = self._store()
        document = PolicyDocuments(store.root, store.settings).of_namespace(NAMESPACE)
        names = sorted(key.removeprefix(_PREFIX) for key in document if key.startswith(_PREFIX))
        definitions: dict[str, Definition | CorruptionError] = {}
        for name in names:
            # A definition may be of a later release, with fields that this one does not know. It concerns
            # its function alone: the others are listed, changed and run.
            try:
                definitions[name] = definition_of(document[f"{_PREFIX}{name}"])
            except CorruptionError as e:
                definitions[name] = CorruptionError(
                    reason=f"the function {name} cannot be read: {e.reason}",
                    remedy="use the release that created or updated it",
                )
        return definitions

    def get(self, full_name: str) -> Definition:
        """One function.

        Raises:
            TopicNotFound: there is none of that name. Also a builtin ``LookupError``.
            CorruptionError: it cannot be read.
        """
        definition = self.all().get(full_name)
        if definition is None:
            raise TopicNotFound(f"there is no function {full_name} in {self._store().root}")
        if isinstance(definition, CorruptionError):
            raise definition
        return definition

    def create(self, config: FunctionConfig) -> Definition:
        """Add a function, to be run.

        Raises:
            NotAllowedError: there is one of that name.
        """
        definition = Definition(config, uuid.uuid4().hex)
        # A policy belongs to a namespace that exists. It stays if the definition is refused below: it has no
        # effect.
        self._store().topics.namespaces.create(NAMESPACE)

        # This runs under the lock of the catalog. A check before the lock would let two processes create the
        # same name, and the second would replace the first.
        def refuse_second(_: object, form: Any) -> Any:
            if config.full_name in self.all():
                raise NotAllowedError(f"there is a function {config.full_name} already; update or delete it")
            return form

        self._set(config.full_name, definition, refuse_second)
        return definition

    def change(self, full_name: str, change: Callable[[Definition], Definition]) -> None:
        """Replace a function by what ``change`` makes of it, which is called under the lock of the catalog.

        Raises:
            TopicNotFound: there is none of that name.
        """
        # The first `get` reports a missing function before anything is locked. What counts is the one in
        # `amend`, under the lock: it sees what other processes changed meanwhile, and the value given here is
        # not used.
        self._set(
            full_name, self.get(full_name), lambda _, form: definition_form(change(self.get(full_name)))
        )

    def remove(self, full_name: str) -> None:
        """Remove a function. Does nothing if there is none."""
        self._set(full_name, None)

    def _set(
        self,
        full_name: str,
        definition: Definition | None,
        amend: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        policy = TopicPolicy[Definition](
            f"{_PREFIX}{full_name}", _without_default, definition_form, definition_of, amend=amend
        )
        self._store().set_policy(NAMESPACE, policy, definition)


def _without_default(settings: object, own: object) -> Definition:
    # Nothing asks for the value of this policy at a level above. A silent default would invent a function.
    raise LookupError("a function has no default")


def definition_form(definition: Definition) -> dict[str, Any]:
    """A definition as it is stored."""
    return {
        "config": definition.config.json(),
        "id": definition.id,
        "version": definition.version,
        "isRunning": definition.is_running,
        "restarts": definition.restarts,
    }


def definition_of(form: Any) -> Definition:
    """The definition of such a form.

    Raises:
        CorruptionError: it is none.
    """
    try:
        return Definition(
            # The form is checked again: the document may have been edited, or written by another release.
            FunctionConfig.from_json(form["config"]).check(),
            str(form["id"]),
            int(form["version"]),
            bool(form["isRunning"]),
            int(form["restarts"]),
        )
    except (InvalidConfiguration, KeyError, TypeError, ValueError) as e:
        raise CorruptionError(reason=f"the definition of a function that is none: {e!r}") from e


_INPUT_TOPIC: Final = "__pfn_input_topic__"
_INPUT_ID: Final = "__pfn_input_msg_id__"


def marks_of(message_id: MessageId, topic: str) -> dict[str, str]:
    """The properties that say from which message an output was made; as in Pulsar."""
    return {_INPUT_TOPIC: topic, _INPUT_ID: base64.b64encode(message_id.serialize()).decode()}


def trigger(
    client: Client, config: FunctionConfig, value: bytes, topic: str | None, timeout_millis: int
) -> bytes | None:
    """Publish a value to an input of a function that is being run, and wait for its output.

    Args:
        client: of the store.
        config: of the function.
        value: the payload, which must fit the schema of the topic.
        topic: one of the inputs; None if there is one.
        timeout_millis: how long to wait.

    Returns:
        The payload of the output; None for a function without an output topic.

    Raises:
        NotAllowedError: the topic is no input, or is not named and there are several.
        Timeout: no output came.
    """
    name = _input_of(config, topic)
    if not config.output:
        _publish(client, name, value)
        return None
    monotonic = client._core.store.clock.monotonic
    end_s = monotonic() + timeout_millis / 1000
    # The reader starts at the end before the value is published. In the other order the function could answer
    # before the reader is there.
    with client.create_reader(config.output, MessageId.latest) as reader:
        wanted = marks_of(_publish(client, name, value), name)
        while (left_ms := int(1000 * (end_s - monotonic()))) > 0:
            try:
                message = reader.read_next(left_ms)
            except Timeout:
                break
            # The output topic has outputs of other messages, too, and may have messages of other producers
            # without these properties. A partitioned input gives the name of the partition.
            properties = message.properties()
            from_topic = properties.get(_INPUT_TOPIC)
            if properties.get(_INPUT_ID) == wanted[_INPUT_ID] and from_topic is not None:
                if TopicName.parse(from_topic).base == name:
                    return message.data()
    raise Timeout(f"{config.full_name} published nothing to {config.output} within {timeout_millis:,} ms")


def _publish(client: Client, topic: str, value: bytes) -> MessageId:
    # The payload is bytes. This schema checks that they fit the schema of the topic, and raises ValueError if
    # they do not.
    with client.create_producer(topic, schema=AutoProduceBytesSchema()) as producer:
        return producer.send(value)


def _input_of(config: FunctionConfig, topic: str | None) -> str:
    named = config.named_inputs()
    if topic is None:
        # A pattern may match any number of topics, so with one the topic has to be named.
        if len(named) != 1 or config.topics_pattern:
            raise NotAllowedError(f"{config.full_name} has several inputs: name one of them as the topic")
        return named[0]
    full = TopicName.parse(topic).base
    if full not in named and not is_of_pattern(config, full):
        raise NotAllowedError(f"{full} is no input of {config.full_name}")
    return full


class Functions(SaysWhatThereIs):
    """Creates, lists, starts, stops and deletes functions, and shows how they do. `Admin.functions` returns
    it. Thread-safe.

    A function that is created is a definition in the store. It is run by a `Supervisor`, or the command
    ``embeddedpulsar functions run``, in any process; without one its messages wait.

    All methods that take the name of a function raise `TopicNotFound` if there is none, which also is a
    ``LookupError``. All methods raise `AlreadyClosed` if the Admin is closed, and a `StorageError` if files
    cannot be used.

    Example:
        >>> from embeddedpulsar import Admin
        >>> with Admin("./data") as admin:
        ...     functions, name = admin.functions(), ("public", "default", "both")
        ...     functions.create_function(FunctionConfig("json.dumps", "both", inputs=["readings"]))
        ...     config = FunctionConfig("json.dumps", "both", inputs=["readings"], output="texts")
        ...     functions.update_function(config)
        ...     functions.get_function(*name).output
        ...     functions.stop_function(*name)
        ...     functions.get_function_status(*name).is_started
        ...     functions.start_function(*name)
        ...     functions.restart_function(*name)
        ...     functions.put_function_state(*name, "tables", 7)
        ...     functions.get_function_state(*name, "tables")
        ...     functions.get_function_stats(*name).received_total
        ...     functions.delete_function(*name)
        'persistent://public/default/texts'
        False
        7
        0
    """

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store: Final = store
        self._access: Final = TopicAccess(store)
        self._definitions: Final = Definitions(store)

    # -- which there are -------------------------------------------------------------------------------

    def create_function(self, config: FunctionConfig, function: Any = None) -> None:
        """Create a function, and have it run by the supervisor of the store.

        Args:
            config: its configuration.
            function: the class or function; the path of the file with ``class_name``, as pulsar-admin's
                ``--py``; None if the configuration says where it is. Classes are not stored: workers import
                them by their names.

        Raises:
            NotAllowedError: there is a function of that name.
            InvalidConfiguration: see `FunctionConfig`; or the code is not found.
            InvalidTopicName: a text is not a topic name.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     config = FunctionConfig("json.dumps", inputs=["readings"], output="texts")
            ...     admin.functions().create_function(config)
            ...     admin.functions().get_functions("public", "default")
            ['dumps']
        """
        self._definitions.create(_complete(config, function))

    def update_function(self, config: FunctionConfig, function: Any = None) -> None:
        """Replace the configuration of a function. Its workers are started again.

        Args:
            config: all of it: what it does not say has its default.
            function: see `create_function`.

        Raises:
            NotAllowedError: the guarantee, the order or the subscription would change, which belong to the
                state: delete the function first.
        """
        config = _complete(config, function)

        def change(before: Definition) -> Definition:
            for name in ("processing_guarantees", "retain_ordering", "retain_key_ordering", "subscription"):
                # The positions in the state say what the old subscription processed, in its order. With
                # another one they would leave out messages that were not processed.
                if getattr(before.config, name) != getattr(config, name):
                    raise NotAllowedError(f"{name} of {config.full_name} cannot be altered; delete it first")
            return before._replace(config=config, version=before.version + 1)

        self._definitions.change(config.full_name, change)

    def get_functions(self, tenant: str, namespace: str) -> list[str]:
        """Return the names of the functions of a namespace, sorted."""
        prefix = f"{tenant}/{namespace}/"
        return [name.removeprefix(prefix) for name in self._definitions.all() if name.startswith(prefix)]

    def get_all_functions(self) -> list[str]:
        """Return the full names of all functions, ``tenant/namespace/name``, sorted. Not in Pulsar.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.functions().create_function(FunctionConfig("json.dumps", "dump", inputs=["in"]))
            ...     "public/default/dump" in admin.functions().get_all_functions()
            True
        """
        return list(self._definitions.all())

    def get_function(self, tenant: str, namespace: str, function: str) -> FunctionConfig:
        """Return the configuration of a function."""
        return self._get(tenant, namespace, function).config

    def delete_function(self, tenant: str, namespace: str, function: str) -> None:
        """Delete a function with its state, and its subscriptions unless ``cleanup_subscription`` is False.

        Raises:
            NotAllowedError: it is being run; stop it first.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.functions().create_function(FunctionConfig("json.loads", inputs=["texts"]))
            ...     admin.functions().delete_function("public", "default", "loads")
            ...     "loads" in admin.functions().get_functions("public", "default")
            False
        """
        definition = self._get(tenant, namespace, function)
        name = definition.config.full_name
        producer_names = self._living(name)
        # The supervisor starts again what is to be run, so that is switched off first. Instances that still
        # live make this call fail; they end after the message that they process, and a second call finds them
        # gone.
        if definition.is_running and SUPERVISOR in producer_names:
            self._definitions.change(name, lambda stored: stored._replace(is_running=False))
        if any(_is_instance(producer_name) for producer_name in producer_names):
            raise NotAllowedError(
                f"{name} is being run; call stop_function, wait a second, until its workers have ended, and "
                "delete it then"
            )
        # The definition goes last: a kill between these steps leaves a function that is listed, and a second
        # call does what is missing. Each step accepts that it was done before.
        if definition.config.cleanup_subscription:
            self._unsubscribe(definition.config)
        store = self._store()
        with contextlib.suppress(TopicNotFound):
            # By force, because the supervisor that stands by, and programs that show the state, may be
            # attached to the topic.
            store.delete_topic(state_topic(name), force=True)
        self._definitions.remove(name)

    def _unsubscribe(self, config: FunctionConfig) -> None:
        names = config.named_inputs()
        if config.topics_pattern:
            # Topics that matched once and are gone now took their subscriptions with them.
            names += [name for name in self._store().topics.names() if is_of_pattern(config, name)]
        for name in dict.fromkeys(names):
            with contextlib.suppress(TopicNotFound, SubscriptionNotFound):
                self._access.delete_subscription(name, config.subscription, force=False)

    # -- running ---------------------------------------------------------------------------------------

    def start_function(self, tenant: str, namespace: str, function: str) -> None:
        """Have a function run that was stopped."""
        self._change(tenant, namespace, function, is_running=True)

    def stop_function(self, tenant: str, namespace: str, function: str) -> None:
        """Have a function not run. The supervisor ends its workers within a second; its messages wait."""
        self._change(tenant, namespace, function, is_running=False)

    def restart_function(self, tenant: str, namespace: str, function: str) -> None:
        """Have all workers of a function started again."""
        self._definitions.change(
            f"{tenant}/{namespace}/{function}",
            lambda stored: stored._replace(is_running=True, restarts=stored.restarts + 1),
        )

    def _change(self, tenant: str, namespace: str, function: str, *, is_running: bool) -> None:
        self._definitions.change(
            f"{tenant}/{namespace}/{function}", lambda stored: stored._replace(is_running=is_running)
        )

    def trigger_function(
        self,
        tenant: str,
        namespace: str,
        function: str,
        topic: str | None = None,
        trigger_value: str | bytes | None = None,
        trigger_file: str | os.PathLike[str] | None = None,
        timeout_millis: int = 10_000,
    ) -> bytes | None:
        """Publish a value to an input of a function, and wait for what the function returns.

        Args:
            tenant: of the function.
            namespace: of the function.
            function: its name.
            topic: the input; may be left out if there is one.
            trigger_value: the payload, or its text; or
            trigger_file: the path of the file with the payload.
            timeout_millis: how long to wait for the output.

        Returns:
            The payload of the output; None for a function without an output topic.

        Raises:
            ValueError: not one of ``trigger_value`` and ``trigger_file``; or the payload does not fit the
                schema of the topic.
            NotAllowedError: the function is not being run, or the topic is no input of it.
            Timeout: no output came: the function raised, or returned None.

        Example:
            >>> import threading
            >>> from embeddedpulsar import Admin
            >>> from embeddedpulsar.functions import LocalRunner
            >>> with Client("memory://cafe") as client, Admin("memory://cafe") as admin:
            ...     config = FunctionConfig("json.dumps", "quote", inputs=["words"], output="quoted")
            ...     admin.functions().create_function(config)
            ...     runner = LocalRunner(config, client=client)
            ...     worker = threading.Thread(target=runner.run)
            ...     worker.start()
            ...     admin.functions().trigger_function("public", "default", "quote", trigger_value="tea")
            ...     runner.stop()
            ...     worker.join()
            b'"tea"'
        """
        if (trigger_value is None) == (trigger_file is None):
            raise ValueError("give trigger_value or trigger_file, one of them")
        if trigger_file is not None:
            with open(trigger_file, "rb") as file:
                trigger_value = file.read()
        value = trigger_value.encode() if isinstance(trigger_value, str) else trigger_value
        definition = self._get(tenant, namespace, function)
        config, living = definition.config, self._living(definition.config.full_name)
        # Without this check a call for a function that is not run would wait for the whole timeout.
        reports = self._state(definition).reports
        if not any(has_subscribed(number, report, living) for number, report in reports.items()):
            raise NotAllowedError(
                f"{config.full_name} is not being run: start `embeddedpulsar functions run`, or a Supervisor"
            )
        with self._client() as client:
            return trigger(client, config, cast("bytes", value), topic, timeout_millis)

    # -- looking ---------------------------------------------------------------------------------------

    def get_function_status(self, tenant: str, namespace: str, function: str) -> FunctionStatus:
        """Return whether a function runs, and how its instances do: which of them live and have subscribed at
        this moment, and counters that are at most a second old.

        Example:
            >>> from embeddedpulsar import Admin
            >>> with Admin("./data") as admin:
            ...     admin.functions().create_function(FunctionConfig("json.dumps", "text", inputs=["in"]))
            ...     status = admin.functions().get_function_status("public", "default", "text")
            ...     status.num_instances, status.num_running, status.supervisor_attached
            (1, 0, False)
        """
        definition = self._get(tenant, namespace, function)
        reports = self._state(definition).reports
        living = self._living(definition.config.full_name)
        count = definition.config.parallelism
        instances = tuple(status_of(number, reports.get(number) or {}, living) for number in range(count))
        # An instance that never ran has no report; one with a number beyond the parallelism of today has one,
        # and is not shown.
        return FunctionStatus(
            count,
            sum(instance.running for instance in instances),
            definition.is_running,
            SUPERVISOR in living,
            instances,
        )

    def get_function_stats(self, tenant: str, namespace: str, function: str) -> FunctionStats:
        """Return what the instances of a function counted since their workers were started, and their
        metrics; at most a second old."""
        definition = self._get(tenant, namespace, function)
        return stats_of(self._state(definition).reports, self._living(definition.config.full_name))

    def get_function_state(self, tenant: str, namespace: str, function: str, key: str) -> int | str | bytes:
        """Return a counter, or a value of `Context.put_state`. The function need not be registered.

        Raises:
            LookupError: the function has no such key.
        """
        value = self._read(f"{tenant}/{namespace}/{function}").value(key)
        if value is None:
            raise TopicNotFound(f"the state of {tenant}/{namespace}/{function} has no key {key!r}")
        return value

    def put_function_state(
        self, tenant: str, namespace: str, function: str, key: str, value: int | str | bytes
    ) -> None:
        """Set a counter or value of the state of a function."""
        if isinstance(value, bool) or not isinstance(value, int | str | bytes):
            raise TypeError(f"the state of a key is int, str or bytes, not {type(value).__name__}")
        full_name = self._get(tenant, namespace, function).config.full_name
        with self._client() as client:
            # The name begins with no digit, so this producer is not taken for an instance (`_is_instance`).
            state = StateLog(client, full_name, f"admin-{os.urandom(6).hex()}")
            try:
                state.acquire()
                # `records_of` computes from the table, which has to be that of this moment: the lock keeps
                # instances from committing in between.
                state.catch_up()
                changes = Changes()
                changes.put(key, value)
                state.commit(state.table.records_of(changes))
            finally:
                state.release()
                state.close()

    def _get(self, tenant: str, namespace: str, function: str) -> Definition:
        return self._definitions.get(f"{tenant}/{namespace}/{function}")

    def _state(self, definition: Definition) -> StateTable:
        return self._read(definition.config.full_name)

    def _read(self, full_name: str) -> StateTable:
        with self._client() as client:
            return read_state(client, full_name)

    def _client(self) -> Client:
        store = self._store()
        return Client(store.root, read_only=store.is_read_only)

    def _living(self, full_name: str) -> set[str]:
        """The names of the producers of a state topic whose process lives: of the supervisor, and of
        instances."""
        store = self._store()
        name = state_topic(full_name)
        if not store.topics.has(name):
            return set()
        return self._access.inspect(name, lambda used: set() if used is None else _names_of_producers(used))


def _names_of_producers(topic: Topic) -> set[str]:
    return {producer.name for producer in topic.view.producers().connected}


def _is_instance(producer_name: str) -> bool:
    """Whether a producer of a state topic is that of an instance."""
    # The producers of instances are named `<number>-<random>`; those of supervisors, of this class and of
    # `CallWatch` begin with a letter.
    return producer_name[:1].isdigit()


def _complete(config: FunctionConfig, function: Any) -> FunctionConfig:
    """The configuration, checked, with the place of the code, which is there."""
    # There are four ways to say where the code is: the path of a file here; a class, function or object here,
    # whose place is found by its module; a path in the configuration; a class name that is imported, for
    # which nothing is to be done.
    if isinstance(function, str | os.PathLike):
        config = config._replace(py=_absolute(os.fspath(function)))
    elif function is not None:
        config = described(config, function)
    elif config.py:
        config = config._replace(py=_absolute(config.py))
    config = config.check()
    # The code and the schemas are looked for now, so that a mistake is an error of the caller and not of a
    # worker in another process. A class is not instantiated: what its constructor does is for a worker.
    code = find_code(config.class_name, config.py)
    if not isinstance(code, type):
        process_of(code)
    output_schema(config)
    for topic in config.custom_schema_inputs:
        input_schema(config, topic)
    return config


def _absolute(path: str) -> str:
    """The same file for every worker, in any directory and of any user."""
    return os.path.abspath(os.path.expanduser(path))


def config_of_file(path: str) -> FunctionConfig:
    """The configuration in a file of JSON, or YAML, with the names of fields that Pulsar has.

    Raises:
        InvalidConfiguration: it is neither; or it is no JSON, and PyYAML is not installed.
        ValueError: it has no object.
        OSError: it cannot be read.
    """
    with open(path, encoding="utf-8") as file:
        text = file.read()
    # JSON first: it needs no package, and PyYAML may not be installed.
    try:
        fields = json.loads(text)
    except ValueError as error:
        fields = _of_yaml(text, path, error)
    if not isinstance(fields, dict):
        raise ValueError(f"{path} has no JSON object, and no mapping of YAML")
    return FunctionConfig.from_json(fields)


def _of_yaml(text: str, path: str, error: ValueError) -> Any:
    try:
        import yaml
    except ImportError:
        # The text of the JSON error is kept: a file that was meant as JSON has its fault there.
        raise InvalidConfiguration(f"{path} is no JSON ({error}); YAML needs: pip install pyyaml") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as wrong:
        raise InvalidConfiguration(f"{path} is neither JSON nor YAML: {wrong}") from None
