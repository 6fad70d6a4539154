"""What Pulsar promises, promise by promise, in a folder for each subject.

===================  ==============================================================================
producing            producers: access, queue, order, deduplication, whole columns, flush and close
consuming            consumers, readers and table views: receiving, listeners, delays, queues
subscriptions        types, who gets what, seek, their end
acknowledging        single, cumulative and of batch indexes, receipts, limits of unacknowledged
redelivery           negative acknowledgements, timeouts, retry letters and dead letters
transactions         sends and acknowledgements of which all count, or none
batches_and_chunks   how messages are put into entries, and taken out of them
payloads             schemas, compression, encryption, ids and copies of messages
topics               partitions, routing, several topics, patterns, non-persistent ones, their end
policies             limits, rates, groups and settings
admin                what an `Admin` shows and does; statistics
retention            what stays: retention, expiry, quotas, trimming, disks that fill
ledgers              what becomes of closed ledgers: compaction, offloading
interfaces           coroutines, functions, interceptors, errors, names, stores in memory
robustness           forks, interrupts, threads, lifetimes, damage
===================  ==============================================================================

What these share lies beside them: `conftest.py` has the fixtures, the other modules the sites.
"""
