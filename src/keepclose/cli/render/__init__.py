"""Renders the answers of commands: tables for people, JSON and YAML for programs, HTML reports.

In come results of other packages; out go lines, documents and pages. A renderer decides nothing,
and never asks a cluster. Text from outside never reaches a terminal or a page unescaped, colour is
never the only sign, and commands that a user may copy are never wrapped.
"""
