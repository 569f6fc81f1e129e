"""Every routing decision, each returned together with its reasons; no I/O, no clock, no chance."""
