"""Starts, supervises and stops the parts of a program, and serves its health and metrics pages.

In: the coroutines of a program, a queue and a sync function, a metrics registry, an explain
function. Out: a program that runs until a signal (`run_program`), work that a signal interrupts
(`run_interruptible`), parts that start in order and stop in reverse (`Parts`), its ready message,
syncs with retries, the text format of Prometheus, health and debug pages. Nothing here may write to
the API server or decide anything; a failing sync must never stop the other workers.
"""
