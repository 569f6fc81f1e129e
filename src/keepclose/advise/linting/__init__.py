"""Lint: what in manifests or in a cluster breaks the promise of a Service to keep traffic close.

Services, workloads, budgets, autoscalers and Nodes come in; findings go out, each with its rule,
its object, the field and the fix. A rule calls the decisions of controller, proxy and scheduler,
and never repeats one. Nothing here reads files, knows lines or prints.
"""
