"""Tells whether a directory is a store, without making one of it."""

from __future__ import annotations

import os

from embeddedpulsar._engine.log import filenames
from embeddedpulsar._engine.platform.access import access_denied
from embeddedpulsar._engine.store import store_root
from embeddedpulsar._engine.store.catalog import root_layout
from embeddedpulsar.exceptions import AccessDeniedError, StorageError, UnsupportedVersionError


def refusal(root: str) -> str:
    """Return why the directory is not a store; "" if it is one."""
    if not os.path.exists(root):
        return f"{root} does not exist; name the directory of a store, as given to Client"
    if not os.path.isdir(root):
        return f"{root} is a file; name the directory of a store, as given to Client"
    try:
        if store_root.read_meta(root) is not None:
            return ""
    except UnsupportedVersionError as e:
        return str(e)
    except AccessDeniedError as e:
        denied = access_denied(f"cannot read the store {root}", e.path or root, e.errno or 0, to_read=True)
        return f"{denied.reason}; {denied.remedy}"
    except StorageError as e:
        if os.path.exists(root_layout.in_root(root, root_layout.CATALOG)):
            return ""  # it is a store, and the check reports what is wrong
        if os.path.exists(filenames.topic_meta_path(root)):
            return f"{root} is a directory of one topic; name the directory of its store, two levels up"
        return f"{root} is not a store: {e.reason}; name the directory of a store, as given to Client"
    except OSError as e:
        return f"{e.filename or root} cannot be read: {e.strerror or e}; {rights(root)}"
    if os.path.exists(root_layout.in_root(root, root_layout.CATALOG)):
        return ""
    return f"{root} is not a store: it holds no {root_layout.META}"


def rights(root: str) -> str:
    """Return what a program must be allowed to do, for an error."""
    return f"a check needs to read all of {root}, as its owner can"
