"""What becomes of an object of each kind when it is written: defaults, kept fields, rules."""
