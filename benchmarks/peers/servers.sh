#!/bin/sh
# The two servers that take part in the benchmarks. They are never left running: each run starts its own on a
# free loopback port over a temporary directory and stops it.
set -eu
apt-get install -y --no-install-recommends redis-server nats-server
