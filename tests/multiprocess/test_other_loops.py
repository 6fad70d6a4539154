"""Programs that replace threads, queues, polling or clocks of the standard library, and sub-interpreters.

Each runs in a child process, because what they replace stays replaced.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from embeddedpulsar import Client
from embeddedpulsar.testing.trial_store import assert_clean
from tests.children import ROOT

LIMIT_S = 60
LEAVING_S = 25
GEVENT = "from gevent import monkey; monkey.patch_all()"
GEVENT_THREADS = "from gevent import monkey; monkey.patch_all(thread=False)"
EVENTLET = "import eventlet; eventlet.monkey_patch()"
EVENTLET_THREADS = "import eventlet; eventlet.monkey_patch(thread=False)"
OPENING = 'client = pulsar.Client(sys.argv[1]); producer = client.create_producer("t")\n'
RUNNING = 'producer.send_async(b"0", lambda *answer: None); producer.flush()\n'

# Greenlets of the library that a program uses, how to wait in a real thread, and how often others ran.
_GREENLETS = """
import sys
if sys.argv[2] == "gevent":
    import gevent
    spawn, pause = gevent.spawn, gevent.sleep
    in_thread = lambda function, *arguments: gevent.get_hub().threadpool.apply(function, arguments)
else:
    import eventlet, eventlet.tpool
    spawn, pause, in_thread = eventlet.spawn, eventlet.sleep, eventlet.tpool.execute
turns = [0]
def count():
    while True:
        turns[0] += 1
        pause(0.01)
def turns_in(function, *arguments):
    before = turns[0]
    result = function(*arguments)
    return result, turns[0] - before
"""

# A timer (redelivery), a callback, a listener, a wait for a message that another greenlet sends, and a wait
# that nobody ends. `is_green`: whether waits let other greenlets run.
_EXCHANGE = """
consumer = client.subscribe("t", "s", pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=50)
spawn(count)
pause(0)
def send_late():
    pause(0.2)
    producer.send(b"late")
spawn(send_late)
wait = (lambda function, *arguments: function(*arguments)) if is_green else in_thread
message, turned = turns_in(wait, consumer.receive, 20_000)
assert message.data() == b"late" and turned >= 5, turned
consumer.negative_acknowledge(message)
message, _ = turns_in(wait, consumer.receive, 20_000)
assert message.redelivery_count() == 1
consumer.acknowledge(message)
answers = []
for number in range(3):
    producer.send_async(b"%d" % number, lambda *answer: answers.append(answer))
producer.flush()
for _ in range(3):
    consumer.acknowledge(consumer.receive(20_000))
def receive_nothing():
    try:
        consumer.receive(100)
    except pulsar.Timeout:
        return True
is_over, turned = turns_in(receive_nothing)
assert is_over and (turned > 3 if is_green else turned == 0), turned
heard = []
def hear(consumer, message):
    heard.append(message)
    consumer.acknowledge(message)
client.subscribe("u", "s", message_listener=hear)
client.create_producer("u").send(b"x")
for _ in range(500):
    if heard and len(answers) == 3:
        break
    pause(0.02)
assert heard and len(answers) == 3
client.close()
print("closed", flush=True)
"""


def run(program: str, *arguments: str) -> str:
    """What a program writes, which has ended without an error."""
    command = [sys.executable, "-W", "ignore", "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def need(module: str) -> None:
    """Leave the test out if a module is missing. It is not imported: eventlet warns at forks since then."""
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"there is no {module}")


def library_of(patch: str) -> str:
    """Which one it is of, if it is installed."""
    library = "gevent" if "gevent" in patch else "eventlet"
    need(library)
    return library


@pytest.fixture
def root(tmp_path: Path) -> Iterator[str]:
    """The directory of a store that is whole in the end."""
    path = str(tmp_path / "store")
    yield path
    if os.path.exists(path):
        assert_clean(path)


@pytest.mark.parametrize(
    ("before", "is_green"),
    [(GEVENT, True), (GEVENT_THREADS, False), (EVENTLET, True), (EVENTLET_THREADS, False)],
)
def test_patched_before_the_import(root: str, before: str, is_green: bool):
    """Timers, callbacks, listeners and waits work. Where threads are patched, too, waits let other greenlets
    run; elsewhere they belong into a real thread, where they let them run as well."""
    library = library_of(before)
    program = f"{before}\nimport sys\nimport embeddedpulsar as pulsar\nis_green = {is_green}\n{OPENING}"
    assert "closed" in run(program + _GREENLETS + _EXCHANGE, root, library)


@pytest.mark.parametrize("is_open", [False, True], ids=["not open", "open"])
@pytest.mark.parametrize("after", [GEVENT, GEVENT_THREADS, EVENTLET])
def test_patched_after_the_import(root: str, after: str, is_open: bool):
    """The same, with a client that was opened before, whose threads run, or opened then. The threads are real
    ones, so waits belong into a real thread."""
    library = library_of(after)
    steps = [OPENING + RUNNING, after] if is_open else [after, OPENING]
    program = "\n".join(["import sys", "import embeddedpulsar as pulsar", *steps, "is_green = False"])
    assert "closed" in run(program + _GREENLETS + _EXCHANGE, root, library)


@pytest.mark.parametrize("patch", [GEVENT, EVENTLET])
def test_patched_in_a_forked_child(root: str, patch: str):
    """As by servers that load the application before they fork their workers."""
    library = library_of(patch)
    program = f"""
import os, sys
import embeddedpulsar as pulsar
client = pulsar.Client(sys.argv[1])
producer = client.create_producer("t")
producer.send_async(b"parent", lambda *answer: None)
producer.flush()
if os.fork():
    status = os.waitstatus_to_exitcode(os.wait()[1])
    client.close()
    os._exit(status)
{patch}
is_green = False
"""
    assert "closed" in run(program + _GREENLETS + _EXCHANGE, root, library)


def test_processes_of_both_kinds_wake_each_other(root: str):
    """A green process waits for messages of one with threads, and the other way round."""
    need("gevent")
    answering = f"""
{GEVENT}
import sys
import embeddedpulsar as pulsar
client = pulsar.Client(sys.argv[1])
consumer, producer = client.subscribe("asked", "s"), client.create_producer("answered")
print("ready", flush=True)
for _ in range(20):
    message = consumer.receive(20_000)
    producer.send(message.data())
    consumer.acknowledge(message)
client.close()
"""
    asking = """
import sys
import embeddedpulsar as pulsar
client = pulsar.Client(sys.argv[1])
consumer, producer = client.subscribe("answered", "s"), client.create_producer("asked")
for number in range(20):
    producer.send(b"%d" % number)
    message = consumer.receive(20_000)
    assert message.data() == b"%d" % number
    consumer.acknowledge(message)
client.close()
print("closed")
"""
    command = [sys.executable, "-W", "ignore", "-c", answering, root]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as answerer:
        try:
            assert answerer.stdout is not None
            assert answerer.stdout.readline() == "ready\n"
            assert "closed" in run(asking, root)
            assert answerer.wait(LIMIT_S) == 0
        finally:
            answerer.kill()


@pytest.mark.parametrize("imported", ["while frozen", "before"])
def test_a_frozen_clock(root: str, imported: str):
    """Waits, timers, delays and deadlines go on, and messages have the time of the system."""
    need("freezegun")
    program = """
import sys, time
from datetime import timedelta
from freezegun import freeze_time
began_ms = time.time_ns() // 1_000_000
if sys.argv[2] == "before":
    import embeddedpulsar as pulsar
with freeze_time("2020-01-01"):
    import embeddedpulsar as pulsar
    client = pulsar.Client(sys.argv[1])
    consumer = client.subscribe("t", "s", pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=50)
    producer = client.create_producer("t")
    producer.send(b"a", deliver_after=timedelta(milliseconds=50))
    message = consumer.receive(20_000)
    assert message.publish_timestamp() >= began_ms, message.publish_timestamp()
    consumer.negative_acknowledge(message)
    message = consumer.receive(20_000)
    assert message.redelivery_count() == 1
    consumer.acknowledge(message)
    for call in (lambda: consumer.receive(50), lambda: client.subscribe("t", "s")):
        try:
            call()
        except (pulsar.Timeout, pulsar.ConsumerBusy):
            continue
        raise AssertionError("it returned")
    producer.send_async(b"b", lambda *answer: None)
    producer.flush()
    consumer.acknowledge(consumer.receive(20_000))
    assert time.time() == 1577836800.0 and time.monotonic() == time.monotonic()
    client.close()
print("closed")
"""
    assert "closed" in run(program, root, imported)


@pytest.mark.parametrize("module", ["embeddedpulsar", "embeddedpulsar.asyncio"])
def test_a_sub_interpreter(module: str):
    """The import fails there, with the reason and the remedy, whether the main one has it or not."""
    need("_xxsubinterpreters")
    program = f"""
import _xxsubinterpreters as interpreters
def refuse():
    interpreter = interpreters.create()
    try:
        interpreters.run_string(interpreter, "import {module}")
    except interpreters.RunFailedError as error:
        print(error)
    interpreters.destroy(interpreter)
refuse()
import {module}
refuse()
"""
    lines = run(program).splitlines()
    assert len(lines) == 2
    for line in lines:
        assert "ImportError" in line and "cannot be used in a sub-interpreter; use it in the main" in line


def test_a_daemon(root: str, tmp_path: Path):
    """That python-daemon makes: a client that was opened before can be used in it, and one that it opens."""
    need("daemon")
    program = """
import os, sys, traceback
import daemon
import embeddedpulsar as pulsar
root, report = sys.argv[1:3]
client = pulsar.Client(root)
producer = client.create_producer("t")
producer.send(b"before")
with daemon.DaemonContext(working_directory=os.getcwd()):
    try:
        producer.send(b"inherited")
        with pulsar.Client(root) as own:
            own.create_producer("t").send(b"own")
            earliest = pulsar.InitialPosition.Earliest
            consumer = own.subscribe("t", "s", initial_position=earliest)
            received = []
            for _ in range(3):
                message = consumer.receive(20_000)
                received.append(message.data().decode())
                consumer.acknowledge(message)
        client.close()
        said = " ".join(received)
    except BaseException:
        said = traceback.format_exc()
    with open(report + ".new", "w") as file:
        file.write(said)
    os.rename(report + ".new", report)
"""
    report = tmp_path / "report"
    run(program, root, str(report))
    wait_until(report.exists)
    assert report.read_text() == "before inherited own"
    Client(root).close()  # removes the lease of the first process, which ends at some time without closing it


# A worker that has not begun when the server ends is killed after 30 s: the test waits for both.
_CONFIGURATION = """
def post_worker_init(worker):
    open(f"worker-{worker.pid}", "w").close()
"""
_APPLICATION = """
import os
import embeddedpulsar as pulsar
client = pulsar.Client(os.environ["STORE"])
producer = client.create_producer("t")
producer.send(b"loaded")

def application(environ, start_response):
    producer.send(b"request")
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]
"""


@pytest.mark.parametrize("options", [["-k", "gevent", "--preload"], ["-k", "gevent"]], ids=str)
def test_gunicorn(root: str, tmp_path: Path, options: list[str]):
    """An application that opens its client when it is loaded, in the master or in each worker."""
    need("gunicorn")
    need("gevent")
    tmp_path.joinpath("application.py").write_text(_APPLICATION)
    tmp_path.joinpath("gunicorn.conf.py").write_text(_CONFIGURATION)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "gunicorn", "-w", "2", "-b", f"127.0.0.1:{port}", "--no-control-socket"]
    command += [*options, "--chdir", str(tmp_path), "application:application"]
    environment = {**os.environ, "STORE": root, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, cwd=tmp_path) as server:
        try:
            wait_until(lambda: len(list(tmp_path.glob("worker-*"))) == 2, server)
            for _ in range(10):
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=20) as answer:
                    assert answer.read() == b"ok"
            server.send_signal(signal.SIGTERM)
            assert server.wait(LEAVING_S) == 0
        finally:
            server.kill()
    counting = """
import sys
import embeddedpulsar as pulsar
with pulsar.Client(sys.argv[1]) as client:
    reader = client.create_reader("t", pulsar.MessageId.earliest)
    received = []
    while reader.has_message_available():
        received.append(reader.read_next(20_000).data())
    print(received.count(b"request"))
"""
    assert run(counting, root).split() == ["10"]


def wait_until(is_so: Callable[[], bool], process: subprocess.Popen[bytes] | None = None) -> None:
    """Wait until something is so, while a process runs."""
    ends = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < ends, "it takes too long"
        assert process is None or process.poll() is None, "the process has ended"
        time.sleep(0.02)
