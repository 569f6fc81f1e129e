"""What becomes of a ServiceAccount when it is written.

Pods and clients name accounts; this server hands out no tokens for them, so an account is a name
with lists of secrets, which only a kubelet would read.
"""

from __future__ import annotations

from keepclose.apiserver.strategies.plain import PlainStrategy


class ServiceAccountStrategy(PlainStrategy):
    """Accounts of pods."""

    returns_deleted = True
