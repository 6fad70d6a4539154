"""The class of a consumer's attachment, by the type of its subscription and the kind of its topic."""

from __future__ import annotations

from collections.abc import Callable

from embeddedpulsar._engine.platform.descriptors import late_import
from embeddedpulsar.subscription.attachment.attachment import Attachment


def attachment_kind(is_claiming: bool, is_volatile: bool) -> Callable[..., Attachment]:
    """Return the class of the attachment of a consumer. May import it, so not to be called under a lock.

    Args:
        is_claiming: whether consumers of the type claim entries: Shared and Key_Shared.
        is_volatile: whether the topic is non-persistent.
    """
    # Imported on first use: most processes have consumers of one kind.
    kind: Callable[..., Attachment]
    if is_claiming:
        late_import("sortedcontainers")  # for counts that a command keeps, under the lock
    if is_volatile:
        late = late_import("embeddedpulsar.subscription.attachment.volatile_attachment")
        kind = late.VolatileSharedAttachment if is_claiming else late.VolatileActiveAttachment
    elif is_claiming:
        kind = late_import("embeddedpulsar.subscription.attachment.shared_attachment").SharedAttachment
    else:
        kind = late_import("embeddedpulsar.subscription.attachment.active_attachment").ActiveAttachment
    return kind
