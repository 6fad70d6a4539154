"""The scenarios that differ on purpose, and why; docs/compatibility.md says more."""

from __future__ import annotations

KNOWN: dict[str, str] = {
    "fields_of_topic_stats": "fields that have no meaning in a store, or are not recorded, are left out",
    "fields_of_internal_stats": "those of brokers, BookKeeper and offloading are left out",
    "volatile_fields": "as for other topics; msgDropCounter is added",
    "stats_without_consumers": "a subscription without consumers has no type",
    "readers": "a reader is no subscription, and counts for no limit",
    "most_consumers": "a reader counts for no limit",
    "most_subscriptions": "a reader counts for no limit",
    "values_of_internal_stats": "Pulsar counts the entry at the read position, which is not there yet",
    "partitioned_stats": "`stats` of a partitioned topic is NotAllowedError, not 404",
    "backlog_of_batches": "backlogs count messages, those of Pulsar entries",
    "looking": "a number beyond the end is refused, and looking creates no subscription",
    "creation_switched_off": "a subscription that may not be created is refused at once, not after a timeout",
    "compaction_of_empty_values": "Pulsar keeps an empty message that was not sent in a batch",
    "compaction_of_batches": "messages that are compacted away are not received as empty ones",
    "volatile_topics": "ids are unique, and drops are counted",
    "policies_of_topics": "no deprecated field, no largest delay; None where Pulsar has an empty list",
    "policies_of_namespaces": "the same; None where Pulsar has 0 for maxTopicsPerNamespace",
}
