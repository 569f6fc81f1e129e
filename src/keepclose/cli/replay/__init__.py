"""`keepclose replay`: a scenario file and a cluster's objects in, a comparison of mechanisms out.

`command` has the options, `scenario_file` reads the file with the line of each problem, and
`report` renders tables, the time line, Markdown and documents. What happens is computed by
`advise.replaying`; nothing here decides anything.
"""
