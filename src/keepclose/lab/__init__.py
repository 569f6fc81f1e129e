"""The lab: a multi-zone cluster on one machine."""
