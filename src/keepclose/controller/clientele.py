"""The Services that ask something of a webhook, by what is made of them.

Kept up with every version of a Service, so that a change that concerns nobody costs nothing.
"""

from __future__ import annotations

from keepclose.model.meta import NamespacedName
from keepclose.webhook.scope import Claim


class Clientele:
    """Sets of Services."""

    def __init__(self) -> None:
        self.asking: set[NamespacedName] = set()
        """Those with a wish, whether it is followed or not."""
        self.ours: set[NamespacedName] = set()
        """Those whose hints we set."""
        self.leaving: set[NamespacedName] = set()
        """Those that were ours, and whose hints are to be the built-in controller's again."""

    def file(self, key: NamespacedName, claim: Claim | None, *, is_leading: bool) -> bool:
        """Take a new version of a Service, None for one that is gone; return whether it matters.

        Only a leader takes hints back: for others the built-in controller has long done it.
        """
        is_concerned = (
            key in self.asking or key in self.leaving or (claim is not None and claim.asks)
        )
        if claim is not None and claim.asks:
            self.asking.add(key)
        else:
            self.asking.discard(key)
        if claim is None:
            self.ours.discard(key)
            self.leaving.discard(key)
        elif claim.is_ours:
            self.ours.add(key)
            self.leaving.discard(key)
        elif key in self.ours:
            self.ours.discard(key)
            if is_leading:
                self.leaving.add(key)
        return is_concerned
