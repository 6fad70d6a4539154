"""Small and odd machines: what runs there, and how one is made of this one.

    sudo python -m tests.machines [NAME ...] [--record]

`program` is what runs: topics are written and read, by processes that are killed as well, and a disk is
filled. It uses the public interface alone, and needs the package and what that depends on. `places` makes the
machines: limits, mounts and environments. A machine that this one cannot be made into is left out, with the
reason.
"""
