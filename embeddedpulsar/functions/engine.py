"""What functions know of the engine; no other module of the package imports from it.

A function reads and publishes by a client. Besides, its definition is kept among the policies of a namespace;
its state is in a topic to which one instance at a time commits, under a lock of files; and its workers are
processes that end with their supervisor.
"""

from __future__ import annotations

# The records of a state, the lock of those that commit to it, and the partition of a key.
from embeddedpulsar._engine.filenames import function_lock_path
from embeddedpulsar._engine.format.document import pack_map, unpack_map
from embeddedpulsar._engine.format.entry import partition_hash

# Workers are processes; an instance has threads, and steps at which tests kill it.
from embeddedpulsar._engine.platform import child_process, failpoints, threads
from embeddedpulsar._engine.platform.child_process import ChildProcess, on_termination, termination
from embeddedpulsar._engine.platform.file_lock import FileLock
from embeddedpulsar._engine.platform.timing import Backoff, Clock

# Definitions are policies of a namespace, and topics of a function have policies of their own.
from embeddedpulsar._engine.store.policies.keeping import COMPACTION_THRESHOLD, INACTIVE_TOPICS
from embeddedpulsar._engine.store.policies.policy import TopicPolicy
from embeddedpulsar._engine.store.policies.policy_documents import PolicyDocuments

# The store, and the topics that a call looks into.
from embeddedpulsar._engine.store.store import Store
from embeddedpulsar._engine.store.topic import Topic
from embeddedpulsar._engine.store.topic_access import SaysWhatThereIs, TopicAccess
