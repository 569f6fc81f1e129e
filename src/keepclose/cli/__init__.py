"""The command line of keepclose: one module for each command or command group.

A command reads options and files, calls the other packages, renders their answer and returns an
exit code. It decides nothing about Services, slices or rules. Answers go to standard output, errors
and logs to standard error. Every text from outside is made plain before a terminal gets it. Heavy
imports stand inside the commands, so that --help stays quick.
"""
