"""`keepclose simulate churn`: what mechanisms cost over time.

A scenario of pods and nodes, or a trace of demand, comes in; a table, JSON or a page goes out.
`command` reads the options and runs scenarios, `traces` reads and runs traces. What happens is
computed by `simulate`; nothing here decides anything.
"""
