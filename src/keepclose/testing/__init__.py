"""Fakes for the tests of controllers and proxies, documented in docs/howto/testing.md.

`api_server` runs the real API server in the test's process, as envtest does for Go. `fake_cluster`
and `scripted_streams` replace the network below a client, with every fault. `fake_clock` replaces
time, `recording_writer` the kernel. Programs never import this package.
"""
