"""The page about the rules of `keepclose lint`, from their descriptions in the code."""

from __future__ import annotations

from keepclose.advise.linting.rules import RULES

GROUPS = {
    "0": "Settings of a Service",
    "1": "Number of replicas",
    "2": "Spread over zones",
    "3": "Rollouts, drains and readiness",
    "4": "References and Nodes",
    "5": "Limits of the command line",
    "9": "Suppressions",
}


def describe_rules() -> str:
    """Return a table of all rules and a section for each."""
    rows = "\n".join(
        f"| [{rule.id}](#{rule.id.lower()}-{rule.name}) | {rule.severity} | {rule.summary} |"
        for rule in RULES.values()
    )
    parts = [f"| rule | severity | finds |\n|---|---|---|\n{rows}\n"]
    group = ""
    for rule in RULES.values():
        if rule.id[2] != group:
            group = rule.id[2]
            parts.append(f"## {GROUPS[group]}\n")
        parts.append(
            f"### {rule.id} {rule.name}\n\n{rule.summary}. Severity: {rule.severity}.\n\n"
            f"{rule.why}\n\nFix: {rule.fix[:1].lower()}{rule.fix[1:]}\n"
        )
    return "\n".join(parts)
