"""The command `keepclose lint`: its options, its input with lines, and its reports.

Reports are written for people (table, Markdown) and for pipelines (JSON, YAML, SARIF, JUnit). What
they say comes from `advise.linting`.
"""
