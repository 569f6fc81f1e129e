"""What differs between two runs of the same command, made the same.

Names drawn by lot, ages, durations, moments, addresses and ports that are given out, the home
directory, colours and the padding of columns. Numbers that mean something are left alone.
"""

from __future__ import annotations

import re
from typing import Final

# The letters that Kubernetes draws names from; without vowels there are no words among them.
_DRAWN: Final = "[bcdfghjklmnpqrstvwxz2456789]"
_RULES: Final = (
    # Colours and other sequences that steer a terminal.
    (re.compile(r"\x1b\[[0-9;?]*[A-Za-z]"), ""),
    (re.compile(r"(?<![\w/.])/(?:root|home/[\w.-]+)(?=/|\s|$)"), "~"),
    # demo-6b7c9d5f48-x2k9q, a pod of a Deployment; demo-6b7c9d5f48; demo-x2k9q, of a DaemonSet.
    (re.compile(rf"-{_DRAWN}{{6,10}}-{_DRAWN}{{5}}\b"), "-<drawn>"),
    (re.compile(rf"-{_DRAWN}{{6,10}}\b"), "-<drawn>"),
    (re.compile(rf"-{_DRAWN}{{5}}\b"), "-<drawn>"),
    # 2026-07-01T12:00:00Z
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)?"), "<moment>"),
    # 0.4 s, 350 ms, 12 seconds; then 12s, 3m4s, 5d of the column AGE.
    (re.compile(r"(?<![\w.])\d+(?:\.\d+)? ?(?:ms|s|seconds?|minutes?)(?!\w)"), "<time>"),
    (re.compile(r"(?<![\w.])(?:\d+[ydhm])+(?:\d+s)?(?!\w)"), "<time>"),
    # Cluster IPs and pod addresses of the lab.
    (re.compile(r"(?<![\w.])10\.(?:96|24[4-9])\.\d+\.\d+(?![\w.])"), "<address>"),
    (re.compile(r"(127\.0\.0\.1|localhost|\[::1\]):\d+"), r"\1:<port>"),
    # 80:31234/TCP
    (re.compile(r"(?<=\d:)3[0-2]\d{3}(?=/(?:TCP|UDP|SCTP))"), "<port>"),
    (re.compile(r"\bpid \d+"), "pid <n>"),
)


def normalise(line: str, *, home: str = "") -> str:
    """Return the line with all that differs between runs replaced, and single spaces."""
    if home:
        line = line.replace(home, "~")
    for pattern, replacement in _RULES:
        line = pattern.sub(replacement, line)
    return " ".join(line.split())
