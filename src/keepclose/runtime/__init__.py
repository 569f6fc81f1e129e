"""What every long-running program needs: event loop, signals, workers, metrics and HTTP pages.

In: a queue and a sync function, a metrics registry, an explain function. Out: syncs with retries,
the text format of Prometheus, health and debug pages. Nothing here may write to the API server or
decide anything; a failing sync must never stop the other workers.
"""
